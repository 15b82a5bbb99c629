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

from shieldtx.ports.hand_over import Arrival, Key, Line
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile.repair.places import Places
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

    def overtaken(self, lines: Mapping[UUID, Line]) -> set[UUID]:
        """Return the events of which the group has received later ones of the same key."""
        keyed = by_key(lines)
        latest = self._downstream.latest_received(self._group, self._source, keyed.keys())

        def reached(key: Key, line: Line, by: timedelta) -> bool:
            """Return whether an arrival of the key was written this much later than an event."""
            return key in latest and latest[key] >= line.due_at + by

        # The latest arrivals decide for nearly all events, even for keys with millions of others.
        near = _selected(keyed, lambda key, _, line: reached(key, line, -CLOCK_STEP))
        late = self._late(near, {key: latest[key] - 2 * CLOCK_STEP for key in near})
        # The near arrivals have lower numbers if a clock was set back: an earlier arrival may have
        # a higher one.
        far = _selected(near, lambda key, i, line: i not in late and reached(key, line, CLOCK_STEP))
        earliest = {
            key: min(line.due_at for line in events.values()) - CLOCK_STEP
            for key, events in far.items()
        }
        return late | self._late(far, earliest)

    def overtaken_since(
        self, lines: Mapping[UUID, Line], since: datetime, *, own: Container[UUID] = ()
    ) -> tuple[set[UUID], Counter[Key]]:
        """Return overtaken events and counts by key, from arrivals open or settled since a time.

        Arrivals that this repair has handed over itself, `own`, are earlier: they are only counted.
        """
        keyed = by_key(lines)
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

        return _late(keyed, self._with_lines(from_elsewhere())), number

    def count_since(self, keys: Collection[Key], since: datetime) -> Mapping[Key, int]:
        """Return the current number of such arrivals, by key."""
        return self._downstream.count_received(self._group, self._source, keys, since=since)

    def _late(
        self, keyed: Mapping[Key, Mapping[UUID, Line]], after: Mapping[Key, datetime]
    ) -> set[UUID]:
        """Return the events that are overtaken by arrivals written after a time, by key."""
        arrivals = self._downstream.received_after(self._group, self._source, after, since=None)
        return _late(keyed, self._with_lines(arrivals))

    def _with_lines(self, arrivals: Iterator[Arrival]) -> Iterator[tuple[Arrival, Line | None]]:
        """Yield arrivals with their outbox positions; None if the outbox lacks the event."""
        for part in batches(arrivals, _LOOKED_UP):
            lines = self._upstream.lines([arrival.event_id for arrival in part])
            for arrival in part:
                yield arrival, lines.get(arrival.event_id)


def by_key(lines: Mapping[UUID, Line]) -> dict[Key, dict[UUID, Line]]:
    """Return the events that have an order, by ordering key."""
    keyed: defaultdict[Key, dict[UUID, Line]] = defaultdict(dict)
    for event_id, line in lines.items():
        if key := line.ordered_by:
            keyed[key][event_id] = line
    return keyed


def _late(
    keyed: Mapping[Key, Mapping[UUID, Line]], arrivals: Iterator[tuple[Arrival, Line | None]]
) -> set[UUID]:
    events = {key: _OfOneKey(of_key) for key, of_key in keyed.items()}
    for arrival, line in arrivals:
        events[arrival.ordered_by].add(arrival, line)
    return {event_id for of_key in events.values() for event_id in of_key.overtaken()}


def _selected(
    keyed: Mapping[Key, Mapping[UUID, Line]], is_wanted: Callable[[Key, UUID, Line], bool]
) -> dict[Key, dict[UUID, Line]]:
    """Return the wanted events by key, without keys that have none."""
    selected = {
        key: {i: line for i, line in events.items() if is_wanted(key, i, line)}
        for key, events in keyed.items()
    }
    return {key: events for key, events in selected.items() if events}


class _OfOneKey:
    """Events of one key, compared with any number of its arrivals in constant memory."""

    def __init__(self, events: Mapping[UUID, Line]) -> None:
        self._events = sorted(events.items(), key=lambda event: event[1].due_at)
        self._times = [line.due_at for _, line in self._events]
        self._near: defaultdict[int, Places] = defaultdict(Places)
        """By event: arrivals that were written late enough for this event and for none after it."""
        self._delayed = Places()
        self._latest_unknown: datetime | None = None

    def add(self, arrival: Arrival, line: Line | None) -> None:
        """Add an arrival, whose outbox row may have been purged."""
        if line is None:
            self._latest_unknown = max(
                arrival.written_at, self._latest_unknown or arrival.written_at
            )
        elif line.delayed_until is not None:
            self._delayed.add(line)
        # Clocks differ: an event written a little earlier may have a higher number.
        elif place := bisect_right(self._times, arrival.written_at + CLOCK_STEP):
            self._near[place - 1].add(line)

    def overtaken(self) -> Iterator[UUID]:
        """Yield the events of which a later one has arrived.

        An arrival without an outbox row may have had any number, so its time decides.
        """
        unknown = self._latest_unknown
        behind = self._delayed
        for number, (event_id, line) in reversed([*enumerate(self._events)]):
            if number in self._near:
                behind.add_last_of(self._near[number])
            if behind.any_behind(line) or (unknown is not None and unknown >= line.due_at):
                yield event_id
