"""Rows of an outbox in the order of its sequence, however many: each takes some forty bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.repair import RepairStore, RowSeen

_ID: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NONE: Final = -(2**63)
_GONE: Final = -1
"""In place of a number, where the outbox does not have the event any more."""


class RowsInOrder:
    """Settled rows of one service's outbox, added in any order and read by their numbers."""

    def __init__(self, source: str, status: OutboxStatus = OutboxStatus.PROCESSED) -> None:
        """Take rows of one status."""
        self._source = source
        self._status = status
        self._seqs, self._settled, self._attempts = array("q"), array("q"), array("q")
        self._ids = bytearray()

    def add(self, seq: int, row: RowSeen) -> None:
        """Add a row under its number of the sequence."""
        self._seqs.append(seq)
        settled = row.settled_at
        self._settled.append(_NONE if settled is None else (settled - _EPOCH) // _MICROSECOND)
        self._attempts.append(_NONE if row.attempts is None else row.attempts)
        self._ids += row.event_id.bytes

    def parts(self, size: int) -> Iterator[list[RowSeen]]:
        """Yield the rows, the lowest number first, `size` at a time."""
        order = array("q", sorted(range(len(self._seqs)), key=self._seqs.__getitem__))
        for start in range(0, len(order), size):
            yield [self._row(number) for number in order[start : start + size]]

    def _row(self, number: int) -> RowSeen:
        settled, attempts = self._settled[number], self._attempts[number]
        return RowSeen(
            event_id=UUID(bytes=bytes(self._ids[number * _ID : (number + 1) * _ID])),
            source=self._source,
            status=self._status,
            settled_at=None if settled == _NONE else _EPOCH + timedelta(microseconds=settled),
            attempts=None if attempts == _NONE else attempts,
        )


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
            self._rows.add(_GONE if line is None else line.seq, row)
        self._new.clear()
