"""Rows of an outbox in the order of sending, at about fifty bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.hand_over import KeyPosition
from shieldtx.ports.repair import RepairStore, RowSeen
from shieldtx.reconcile.repair.digest_set import DigestSet

_ID: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NONE: Final = -(2**63)
_GONE: Final = KeyPosition(seq=-1, written_at=_EPOCH)
"""The position of an event whose row the outbox no longer has."""


class RowsInOrder:
    """Settled rows of one service's outbox, added in any order and read in order of position."""

    def __init__(self, source: str, status: OutboxStatus = OutboxStatus.PROCESSED) -> None:
        """Create an empty collection for rows of one status."""
        self._source = source
        self._status = status
        self._seqs, self._settled, self._attempts = array("q"), array("q"), array("q")
        self._due = array("q")
        self._is_delayed, self._ids = bytearray(), bytearray()

    def add(self, position: KeyPosition, row: RowSeen) -> None:
        """Add a row with its position."""
        self._seqs.append(position.seq)
        self._due.append(_microseconds(position.due_at))
        self._is_delayed.append(position.delayed_until is not None)
        settled = row.settled_at
        self._settled.append(_NONE if settled is None else _microseconds(settled))
        self._attempts.append(_NONE if row.attempts is None else row.attempts)
        self._ids += row.event_id.bytes

    def parts(self, size: int) -> Iterator[list[RowSeen]]:
        """Yield the rows in the order of sending, `size` at a time."""
        order = array("q", self._order())
        for start in range(0, len(order), size):
            yield [self._row(number) for number in order[start : start + size]]

    def _order(self) -> Iterator[int]:
        """Yield row indexes by outbox number, with delayed rows in between at their due times."""
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
    """A set of event ids, at about twenty bytes each."""

    def __init__(self) -> None:
        self._ids = DigestSet()

    def add(self, event_ids: Iterable[UUID]) -> None:
        """Add ids."""
        for event_id in event_ids:
            # The digest covers all bytes of the id: ids of a caller may share half of them.
            self._ids.add(event_id.bytes)

    def __contains__(self, event_id: object) -> bool:
        return isinstance(event_id, UUID) and event_id.bytes in self._ids


class NumberedRows:
    """Rows in order whose numbers are looked up in the outbox, in batches."""

    def __init__(
        self,
        source: str,
        outbox: RepairStore,
        *,
        looked_up: int,
        status: OutboxStatus = OutboxStatus.PROCESSED,
    ) -> None:
        """Create an empty collection for rows of one status."""
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
        """Return all added rows; rows that the outbox no longer has come first."""
        self._number()
        return self._rows

    def _number(self) -> None:
        positions = self._outbox.positions([row.event_id for row in self._new])
        for row in self._new:
            position = positions.get(row.event_id)
            self._rows.add(position or _GONE, row)
        self._new.clear()
