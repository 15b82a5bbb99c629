"""The partitions that a member of a consumer group leaves out of its polls."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from kafka import TopicPartition as KafkaPartition

from shieldtx.ports.broker import TopicPartition


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
