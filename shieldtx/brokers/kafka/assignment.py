"""The partitions of a group's member: those it pauses, and topics recreated under their names."""

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
        """The partitions to leave out, this member's and others'."""
        return self._paused

    def pause(self, places: AbstractSet[TopicPartition]) -> None:
        """Leave out these partitions and no others."""
        self._paused = frozenset(KafkaPartition(*place) for place in places)

    def renew(self, consumer: Any) -> None:
        """Have the client pause what is paused of its partitions, and nothing else."""
        if not self._paused and not self._may_be_paused:
            return
        paused, wanted = consumer.paused(), self._paused & (consumer.assignment() or set())
        consumer.pause(*(wanted - paused))
        consumer.resume(*(paused - wanted))
        self._may_be_paused = bool(wanted)

    def without_paused(self, consumer: Any, fetched: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        """Put back what a poll has fetched from partitions that came to this member meanwhile."""
        for place in self._paused & fetched.keys():
            consumer.seek(place, fetched[place][0].offset)
        return {place: found for place, found in fetched.items() if place not in self._paused}


class TopicIdentities:
    """Which topics behind their names a member of a group reads.

    Its client reads on from where it was in the former topic, over all that lies before that place
    in the new one, though it has been told of the change (kafka-python 3.0.12).
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._known: dict[str, UUID] = {}
        self._asked_at = time.monotonic()

    def look(self, cluster: Any) -> None:
        """Have the client ask for the topics if it was left alone for a while: see `recreated`.

        Otherwise the broker's answers to its fetches tell it when a topic goes.
        """
        now = time.monotonic()
        if now - self._asked_at > _PAUSE_S:
            answered = Event()
            cluster.request_update().add_both(lambda _: answered.set())
            answered.wait(_ANSWER_S)

    def recreated(self, cluster: Any) -> set[str]:
        """Return the topics that are not those of the last call; a missing one stays what it is."""
        self._asked_at = time.monotonic()
        now = {topic: cluster.topic_id(topic) for topic in self._topics}
        there = {topic: identity for topic, identity in now.items() if identity is not None}
        anew = {t for t, identity in there.items() if self._known.get(t, identity) != identity}
        self._known |= there
        return anew
