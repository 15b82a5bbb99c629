"""Rows of an outbox in the order in which it sends them, however many: fifty bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.hand_over import Place
from shieldtx.ports.repair import RepairStore, RowSeen
from shieldtx.reconcile.repair.digest_set import DigestSet

_ID: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NONE: Final = -(2**63)
_GONE: Final = Place(seq=-1, written_at=_EPOCH)
"""Of an event that the outbox does not have any more."""


class RowsInOrder:
    """Settled rows of one service's outbox, added in any order and read in that of `Place`."""

    def __init__(self, source: str, status: OutboxStatus = OutboxStatus.PROCESSED) -> None:
        """Take rows of one status."""
        self._source = source
        self._status = status
        self._seqs, self._settled, self._attempts = array("q"), array("q"), array("q")
        self._due = array("q")
        self._is_delayed, self._ids = bytearray(), bytearray()

    def add(self, place: Place, row: RowSeen) -> None:
        """Add a row under its place."""
        self._seqs.append(place.seq)
        self._due.append(_microseconds(place.due_at))
        self._is_delayed.append(place.delayed_until is not None)
        settled = row.settled_at
        self._settled.append(_NONE if settled is None else _microseconds(settled))
        self._attempts.append(_NONE if row.attempts is None else row.attempts)
        self._ids += row.event_id.bytes

    def parts(self, size: int) -> Iterator[list[RowSeen]]:
        """Yield the rows, the one that is sent first at the front, `size` at a time."""
        order = array("q", self._order())
        for start in range(0, len(order), size):
            yield [self._row(number) for number in order[start : start + size]]

    def _order(self) -> Iterator[int]:
        """Yield the rows by their numbers; between them, when they are due, those with a delay."""
        rows = range(len(self._seqs))
        delayed = [row for row in rows if self._is_delayed[row]]
        delayed.sort(key=lambda row: (self._due[row], self._seqs[row]))
        next_ = 0
        for row in sorted(rows, key=self._seqs.__getitem__):
            if not self._is_delayed[row]:
                while next_ < len(delayed) and self._due[delayed[next_]] < self._due[row]:
                    yield delayed[next_]
                    next_ += 1
                yield row
        yield from delayed[next_:]

    def _row(self, number: int) -> RowSeen:
        settled, attempts = self._settled[number], self._attempts[number]
        return RowSeen(
            event_id=UUID(bytes=bytes(self._ids[number * _ID : (number + 1) * _ID])),
            source=self._source,
            status=self._status,
            settled_at=None if settled == _NONE else _EPOCH + timedelta(microseconds=settled),
            attempts=None if attempts == _NONE else attempts,
        )


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


class EventIds:
    """Ids of events, however many: each takes some twenty bytes."""

    def __init__(self) -> None:
        self._ids = DigestSet()

    def add(self, event_ids: Iterable[UUID]) -> None:
        """Add ids."""
        for event_id in event_ids:
            # All bytes of it: ids that a caller made may share half of them.
            self._ids.add(event_id.bytes)

    def __contains__(self, event_id: object) -> bool:
        return isinstance(event_id, UUID) and event_id.bytes in self._ids


class NumberedRows:
    """The same, of rows whose numbers are looked up in the outbox when enough of them are there."""

    def __init__(
        self,
        source: str,
        outbox: RepairStore,
        *,
        looked_up: int,
        status: OutboxStatus = OutboxStatus.PROCESSED,
    ) -> None:
        """Take rows of one status."""
        self._outbox = outbox
        self._looked_up = looked_up
        self._new: list[RowSeen] = []
        self._rows = RowsInOrder(source, status)

    def add(self, row: RowSeen) -> None:
        """Add a row of the outbox that has this status."""
        self._new.append(row)
        if len(self._new) >= self._looked_up:
            self._number()

    def in_order(self) -> RowsInOrder:
        """Return all that were added; those that the outbox does not have any more come first."""
        self._number()
        return self._rows

    def _number(self) -> None:
        lines = self._outbox.lines([row.event_id for row in self._new])
        for row in self._new:
            line = lines.get(row.event_id)
            self._rows.add(line or _GONE, row)
        self._new.clear()
