"""Finds the events that a group would receive after later ones of their keys.

The outbox number of an event decides: the events of a key are sent in the order of their numbers,
and events with a chosen delay when they are due. The time of writing shows where in the inbox later
events may be, and decides if the outbox row has been purged. Later events with a delay may have
been written at any time: `siblings` looks for these in the outbox.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from shieldtx.ports.hand_over import Arrival, EventPosition, Key
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile.repair.key_positions import KeyPositions
from shieldtx.reconcile.repair.slices import batches

CLOCK_STEP: Final = timedelta(seconds=10)
"""An event written longer than this before another is not a later one: clocks of writers differ by
less."""

SETTLING: Final = timedelta(minutes=10)
"""The time before a scan whose settled rows the scan may have missed, because they committed later.
"""

_LOOKED_UP: Final = 5_000
"""Events in one lookup."""

_EVER: Final = datetime(1, 1, 2, tzinfo=UTC)
"""A time before all events."""


class KeyOrder:
    """The order of one service's events in the inbox of one group."""

    def __init__(
        self, *, upstream: RepairStore, downstream: RepairStore, source: str, group: str
    ) -> None:
        """Use the databases of the service that writes, and of the service that receives."""
        self._upstream = upstream
        self._downstream = downstream
        self._source = source
        self._group = group

    def overtaken(self, positions: Mapping[UUID, EventPosition]) -> set[UUID]:
        """Return the events of which the group has received later ones of the same key."""
        keyed = by_key(positions)
        latest = self._downstream.latest_received(self._group, self._source, keyed.keys())

        def reached(key: Key, position: EventPosition, by: timedelta) -> bool:
            """Return whether an arrival of the key was written this much later than an event."""
            return key in latest and latest[key] >= position.due_at + by

        # The latest arrivals decide for nearly all events, even for keys with millions of others.
        near = _selected(keyed, lambda key, _, position: reached(key, position, -CLOCK_STEP))
        late = self._late(near, {key: latest[key] - 2 * CLOCK_STEP for key in near})
        # The near arrivals have lower numbers if a clock was set back: an earlier arrival may have
        # a higher one.
        far = _selected(
            near, lambda key, i, position: i not in late and reached(key, position, CLOCK_STEP)
        )
        earliest = {
            key: min(position.due_at for position in events.values()) - CLOCK_STEP
            for key, events in far.items()
        }
        return late | self._late(far, earliest)

    def overtaken_since(
        self, positions: Mapping[UUID, EventPosition], since: datetime, *, own: Container[UUID] = ()
    ) -> tuple[set[UUID], Counter[Key]]:
        """Return overtaken events and counts by key, from arrivals open or settled since a time.

        Arrivals that this repair has handed over itself, `own`, are earlier: they are only counted.
        """
        keyed = by_key(positions)
        number = Counter[Key]()

        def from_elsewhere() -> Iterator[Arrival]:
            # Recent arrivals are few, so all are read: one with a delay may have been written
            # earlier.
            ever = dict.fromkeys(keyed, _EVER)
            for arrival in self._downstream.received_after(
                self._group, self._source, ever, since=since
            ):
                number[arrival.ordered_by] += 1
                if arrival.event_id not in own:
                    yield arrival

        return _late(keyed, self._with_positions(from_elsewhere())), number

    def count_since(self, keys: Collection[Key], since: datetime) -> Mapping[Key, int]:
        """Return the current number of such arrivals, by key."""
        return self._downstream.count_received(self._group, self._source, keys, since=since)

    def _late(
        self, keyed: Mapping[Key, Mapping[UUID, EventPosition]], after: Mapping[Key, datetime]
    ) -> set[UUID]:
        """Return the events that are overtaken by arrivals written after a time, by key."""
        arrivals = self._downstream.received_after(self._group, self._source, after, since=None)
        return _late(keyed, self._with_positions(arrivals))

    def _with_positions(
        self, arrivals: Iterator[Arrival]
    ) -> Iterator[tuple[Arrival, EventPosition | None]]:
        """Yield arrivals with their outbox positions; None if the outbox lacks the event."""
        for part in batches(arrivals, _LOOKED_UP):
            positions = self._upstream.positions([arrival.event_id for arrival in part])
            for arrival in part:
                yield arrival, positions.get(arrival.event_id)


def by_key(positions: Mapping[UUID, EventPosition]) -> dict[Key, dict[UUID, EventPosition]]:
    """Return the events that have an order, by ordering key."""
    keyed: defaultdict[Key, dict[UUID, EventPosition]] = defaultdict(dict)
    for event_id, position in positions.items():
        if key := position.ordered_by:
            keyed[key][event_id] = position
    return keyed


def _late(
    keyed: Mapping[Key, Mapping[UUID, EventPosition]],
    arrivals: Iterator[tuple[Arrival, EventPosition | None]],
) -> set[UUID]:
    events = {key: _OfOneKey(of_key) for key, of_key in keyed.items()}
    for arrival, position in arrivals:
        events[arrival.ordered_by].add(arrival, position)
    return {event_id for of_key in events.values() for event_id in of_key.overtaken()}


def _selected(
    keyed: Mapping[Key, Mapping[UUID, EventPosition]],
    is_wanted: Callable[[Key, UUID, EventPosition], bool],
) -> dict[Key, dict[UUID, EventPosition]]:
    """Return the wanted events by key, without keys that have none."""
    selected = {
        key: {i: position for i, position in events.items() if is_wanted(key, i, position)}
        for key, events in keyed.items()
    }
    return {key: events for key, events in selected.items() if events}


class _OfOneKey:
    """Events of one key, compared with any number of its arrivals in constant memory."""

    def __init__(self, events: Mapping[UUID, EventPosition]) -> None:
        self._events = sorted(events.items(), key=lambda event: event[1].due_at)
        self._times = [position.due_at for _, position in self._events]
        self._near: defaultdict[int, KeyPositions] = defaultdict(KeyPositions)
        """By event: arrivals that were written late enough for this event and for none after it."""
        self._delayed = KeyPositions()
        self._latest_unknown: datetime | None = None

    def add(self, arrival: Arrival, position: EventPosition | None) -> None:
        """Add an arrival, whose outbox row may have been purged."""
        if position is None:
            self._latest_unknown = max(
                arrival.written_at, self._latest_unknown or arrival.written_at
            )
        elif position.delayed_until is not None:
            self._delayed.add(position)
        # Clocks differ: an event written a little earlier may have a higher number.
        elif index := bisect_right(self._times, arrival.written_at + CLOCK_STEP):
            self._near[index - 1].add(position)

    def overtaken(self) -> Iterator[UUID]:
        """Yield the events of which a later one has arrived.

        An arrival without an outbox row may have had any number, so its time decides.
        """
        unknown = self._latest_unknown
        later = self._delayed
        for number, (event_id, position) in reversed([*enumerate(self._events)]):
            if number in self._near:
                later.add_last_of(self._near[number])
            if later.any_after(position) or (unknown is not None and unknown >= position.due_at):
                yield event_id
