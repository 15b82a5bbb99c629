"""The order in which an outbox sends the events of a key."""

from __future__ import annotations

from datetime import datetime

from shieldtx.ports.hand_over import KeyPosition


class KeyPositions:
    """The positions of events of one key in constant memory: only first and last ones are kept."""

    __slots__ = ("_due", "_numbers", "_written")

    def __init__(self) -> None:
        self._numbers: tuple[int, int] | None = None
        self._written: tuple[datetime, datetime] | None = None
        self._due: tuple[tuple[datetime, int], tuple[datetime, int]] | None = None
        """Of events with a chosen delay; the other fields are of events without a delay."""

    def add(self, position: KeyPosition) -> None:
        """Add an event."""
        if position.delayed_until is not None:
            due = position.delayed_until, position.seq
            first, last = self._due or (due, due)
            self._due = min(first, due), max(last, due)
            return
        lowest, highest = self._numbers or (position.seq, position.seq)
        self._numbers = min(lowest, position.seq), max(highest, position.seq)
        earliest, latest = self._written or (position.written_at, position.written_at)
        self._written = min(earliest, position.written_at), max(latest, position.written_at)

    def add_last_of(self, others: KeyPositions) -> None:
        """Add the last positions of others."""
        if others._numbers and others._written:
            self.add(KeyPosition(seq=others._numbers[1], written_at=others._written[1]))
        if others._due:
            due, seq = others._due[1]
            self.add(KeyPosition(seq=seq, written_at=due, delayed_until=due))

    def any_before(self, position: KeyPosition) -> bool:
        """Return whether one of these is sent before an event."""
        if position.delayed_until is None:
            return (self._numbers is not None and self._numbers[0] < position.seq) or (
                self._due is not None and self._due[0][0] < position.written_at
            )
        return (
            self._due is not None and self._due[0] < (position.delayed_until, position.seq)
        ) or (self._written is not None and self._written[0] < position.delayed_until)

    def any_after(self, position: KeyPosition) -> bool:
        """Return whether one of these is sent after an event."""
        if position.delayed_until is None:
            return (self._numbers is not None and self._numbers[1] > position.seq) or (
                self._due is not None and self._due[1][0] > position.written_at
            )
        return (
            self._due is not None and self._due[1] > (position.delayed_until, position.seq)
        ) or (self._written is not None and self._written[1] > position.delayed_until)
