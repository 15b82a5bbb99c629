"""What a group would have received if it had been handed over what a dry run says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias
from uuid import UUID

from shieldtx.ports.hand_over import Key, Line
from shieldtx.reconcile.digest_set import DigestRanges, DigestSet


class WouldHave:
    """Events that a dry run has found fit to be handed over to one group, however many."""

    def __init__(self) -> None:
        self._ids = DigestSet()
        self._numbers = DigestRanges()

    def add(self, event_ids: Iterable[UUID], lines: Mapping[UUID, Line]) -> None:
        """Add events, with where they stand in the outbox."""
        for event_id in event_ids:
            # All bytes of it: ids that a caller made may share half of them.
            self._ids.add(event_id.bytes)
            line = lines.get(event_id)
            if line is not None and (key := line.ordered_by):
                self._numbers.widen(_named(key), line.seq)

    def __contains__(self, event_id: UUID) -> bool:
        return event_id.bytes in self._ids

    def has_earlier(self, key: Key, seq: int) -> bool:
        """Whether one of these events comes before a number, among those of the key."""
        numbers = self._numbers.range_of(_named(key))
        return numbers is not None and numbers[0] < seq

    def has_later(self, key: Key, seq: int) -> bool:
        """Whether one of these events comes behind a number, among those of the key."""
        numbers = self._numbers.range_of(_named(key))
        return numbers is not None and numbers[1] > seq


OfGroups: TypeAlias = Mapping[tuple[str, str], WouldHave]
"""By service and group."""


def _named(key: Key) -> bytes:
    return "\0".join(key).encode()
