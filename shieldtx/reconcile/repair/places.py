"""The order in which an outbox sends the events of a key."""

from __future__ import annotations

from datetime import datetime

from shieldtx.ports.hand_over import Place


class Places:
    """The positions of events of one key in constant memory: only first and last ones are kept."""

    __slots__ = ("_due", "_numbers", "_written")

    def __init__(self) -> None:
        self._numbers: tuple[int, int] | None = None
        self._written: tuple[datetime, datetime] | None = None
        self._due: tuple[tuple[datetime, int], tuple[datetime, int]] | None = None
        """Of events with a chosen delay; the other fields are of events without a delay."""

    def add(self, place: Place) -> None:
        """Add an event."""
        if place.delayed_until is not None:
            due = place.delayed_until, place.seq
            first, last = self._due or (due, due)
            self._due = min(first, due), max(last, due)
            return
        lowest, highest = self._numbers or (place.seq, place.seq)
        self._numbers = min(lowest, place.seq), max(highest, place.seq)
        earliest, latest = self._written or (place.written_at, place.written_at)
        self._written = min(earliest, place.written_at), max(latest, place.written_at)

    def add_last_of(self, others: Places) -> None:
        """Add the last positions of others."""
        if others._numbers and others._written:
            self.add(Place(seq=others._numbers[1], written_at=others._written[1]))
        if others._due:
            due, seq = others._due[1]
            self.add(Place(seq=seq, written_at=due, delayed_until=due))

    def any_before(self, place: Place) -> bool:
        """Return whether one of these is sent before an event."""
        if place.delayed_until is None:
            return (self._numbers is not None and self._numbers[0] < place.seq) or (
                self._due is not None and self._due[0][0] < place.written_at
            )
        return (self._due is not None and self._due[0] < (place.delayed_until, place.seq)) or (
            self._written is not None and self._written[0] < place.delayed_until
        )

    def any_behind(self, place: Place) -> bool:
        """Return whether one of these is sent after an event."""
        if place.delayed_until is None:
            return (self._numbers is not None and self._numbers[1] > place.seq) or (
                self._due is not None and self._due[1][0] > place.written_at
            )
        return (self._due is not None and self._due[1] > (place.delayed_until, place.seq)) or (
            self._written is not None and self._written[1] > place.delayed_until
        )
