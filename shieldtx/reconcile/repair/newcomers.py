"""Detects events that are overtaken in a group while a repair hands events over to it."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from datetime import datetime
from uuid import UUID

from shieldtx.ports.hand_over import EventPosition, Key
from shieldtx.reconcile.repair.key_order import KeyOrder, by_key


class Newcomers:
    """Finds arrivals from other writers since a scan of the inbox.

    Before each batch, all arrivals of its keys that are open or have settled since are counted.
    They are read only if their number differs from the known one. The events that this repair has
    handed over are among them: reading these before each batch would take longer and longer.
    """

    def __init__(
        self,
        order: KeyOrder,
        positions: Mapping[UUID, EventPosition],
        *,
        since: datetime,
        own: Container[UUID],
    ) -> None:
        """Look for arrivals later than these events; `own` has what this repair has handed over."""
        self._order = order
        self._events = by_key(positions)
        self._key_of = {i: key for key, events in self._events.items() for i in events}
        self._since = since
        self._own = own
        self._known: dict[Key, int] = {}
        """The number of arrivals that have been read, by key."""
        self._overtaken: set[UUID] = set()

    def overtaken(self, events: Collection[UUID]) -> set[UUID]:
        """Return which of these events have been overtaken by now."""
        keys = {
            self._key_of[each]
            for each in events
            if each in self._key_of and each not in self._overtaken
        }
        seen = keys & self._known.keys()
        now = self._order.count_since(seen, self._since)
        unchanged = {key for key in seen if now.get(key, 0) == self._known[key]}
        if changed := keys - unchanged:
            self._read(changed)
        return self._overtaken.intersection(events)

    def hand_over(self, positions: Iterable[EventPosition]) -> None:
        """Count events that this repair has handed over, since they are arrivals as well."""
        for position in positions:
            if (key := position.ordered_by) in self._known:
                self._known[key] += 1

    def _read(self, keys: Collection[Key]) -> None:
        # For all events of the keys: their later batches do not read the same arrivals again.
        positions = {i: position for key in keys for i, position in self._events[key].items()}
        late, number = self._order.overtaken_since(positions, self._since, own=self._own)
        self._overtaken |= late
        self._known |= {key: number[key] for key in keys}
