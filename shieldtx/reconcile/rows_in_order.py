"""Rows of an outbox in the order of its sequence, however many: each takes some forty bytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.repair import RowSeen

_ID: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NONE: Final = -(2**63)


class RowsInOrder:
    """PROCESSED rows of one service's outbox, added in any order and read by their numbers."""

    def __init__(self, source: str) -> None:
        self._source = source
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
            status=OutboxStatus.PROCESSED,
            settled_at=None if settled == _NONE else _EPOCH + timedelta(microseconds=settled),
            attempts=None if attempts == _NONE else attempts,
        )
