"""The partitions that a member of a consumer group leaves out of its polls."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

from kafka import TopicPartition

from shieldtx.ports.broker import TopicPartition


class Pauses:
    """Keeps what is held, whatever the client remembers: it forgets its pauses when it rejoins."""

    def __init__(self) -> None:
        self._held: frozenset[TopicPartition] = frozenset()
        self._may_be_paused = False

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions to leave out, this member's and others'."""
        return self._held

    def hold(self, places: AbstractSet[TopicPartition]) -> None:
        """Leave out these partitions and no others."""
        self._held = frozenset(TopicPartition(*place) for place in places)

    def renew(self, consumer: Any) -> None:
        """Have the client pause what is held of its partitions, and nothing else."""
        if not self._held and not self._may_be_paused:
            return
        paused, held = consumer.paused(), self._held & (consumer.assignment() or set())
        consumer.pause(*(held - paused))
        consumer.resume(*(paused - held))
        self._may_be_paused = bool(held)

    def without_held(self, consumer: Any, fetched: dict[Any, list[Any]]) -> dict[Any, list[Any]]:
        """Put back what a poll has fetched from partitions that came to this member meanwhile."""
        for place in self._held & fetched.keys():
            consumer.seek(place, fetched[place][0].offset)
        return {place: found for place, found in fetched.items() if place not in self._held}
