"""The partitions of a group's member: its paused partitions, and recreated topics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from threading import Event
from typing import Any, Final
from uuid import UUID

from kafka import TopicPartition as KafkaPartition

from shieldtx.ports.broker import TopicPartition

_PAUSE_S: Final = 0.5
_ANSWER_S: Final = 1.0


class Pauses:
    """Keeps the paused partitions: the client forgets its own pauses when it rejoins."""

    def __init__(self) -> None:
        self._paused: frozenset[KafkaPartition] = frozenset()
        self._may_be_paused = False

    @property
    def paused(self) -> frozenset[KafkaPartition]:
        """Paused partitions, also those of other members."""
        return self._paused

    def pause(self, places: AbstractSet[TopicPartition]) -> None:
        """Pause exactly these partitions."""
        self._paused = frozenset(KafkaPartition(*place) for place in places)

    def renew(self, consumer: Any) -> None:
        """Make the client pause the paused partitions that it owns, and no others."""
        if not self._paused and not self._may_be_paused:
            return
        paused, wanted = consumer.paused(), self._paused & (consumer.assignment() or set())
        consumer.pause(*(wanted - paused))
        consumer.resume(*(paused - wanted))
        self._may_be_paused = bool(wanted)

    def without_paused(self, consumer: Any, fetched: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        """Return the other partitions' records; rewind the client to the first paused record."""
        for place in self._paused & fetched.keys():
            consumer.seek(place, fetched[place][0].offset)
        return {place: found for place, found in fetched.items() if place not in self._paused}


class TopicIdentities:
    """Topic ids of a member of a group, to notice recreated topics.

    Its client continues at its offset in the former topic and skips the records before that offset
    in the new topic, although it has been notified (kafka-python 3.0.12).
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._known: dict[str, UUID] = {}
        self._asked_at = time.monotonic()

    def refresh(self, cluster: Any) -> None:
        """Have the client refresh its metadata if `recreated` was not called for a while.

        Otherwise the broker's responses to its fetches report a deleted topic.
        """
        now = time.monotonic()
        if now - self._asked_at > _PAUSE_S:
            answered = Event()
            cluster.request_update().add_both(lambda _: answered.set())
            answered.wait(_ANSWER_S)

    def recreated(self, cluster: Any) -> set[str]:
        """Return the topics whose id differs from the last call; missing topics keep their ids."""
        self._asked_at = time.monotonic()
        now = {topic: cluster.topic_id(topic) for topic in self._topics}
        there = {topic: identity for topic, identity in now.items() if identity is not None}
        recreated_topics = {
            t for t, identity in there.items() if self._known.get(t, identity) != identity
        }
        self._known |= there
        return recreated_topics
