"""Which events a group would get behind later ones of their keys.

The time at which an event was written says that, and within a step of the clock the number that its
outbox gave it: writers on several machines, or a clock that was set back, number events otherwise
than their times say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Final
from uuid import UUID

from shieldtx.ports.hand_over import Arrival, Key, Line
from shieldtx.ports.repair import RepairStore
from shieldtx.reconcile.slices import slices

CLOCK_STEP: Final = timedelta(seconds=10)
"""Events that were written further apart are in the order of their times."""

_LOOKED_UP: Final = 5_000
"""Events that are looked up at once."""

_UNKNOWN: Final = -1
"""In place of a number, where the outbox does not have the event any more."""


class KeyOrder:
    """The order of one service's events in the inbox of one group."""

    def __init__(
        self, *, upstream: RepairStore, downstream: RepairStore, source: str, group: str
    ) -> None:
        """Ask the databases of the service that writes, and of the one that receives."""
        self._upstream = upstream
        self._downstream = downstream
        self._source = source
        self._group = group

    def overtaken(self, lines: Mapping[UUID, Line], *, since: datetime | None = None) -> set[UUID]:
        """Return of which events the group has received later ones of the same key.

        With `since`, by those alone that have come or settled since.
        """
        keyed = {i: (key, line) for i, line in lines.items() if (key := line.ordered_by)}
        keys = {key for key, _ in keyed.values()}
        latest = self._downstream.latest_received(self._group, self._source, keys, since=since)
        overtaken, close = set[UUID](), dict[UUID, tuple[Key, Line]]()
        for event_id, (key, line) in keyed.items():
            when = latest.get(key)
            if when is not None and when > line.written_at + CLOCK_STEP:
                overtaken.add(event_id)
            elif when is not None and when >= line.written_at - CLOCK_STEP:
                close[event_id] = key, line
        # What was written before that is too early for any of them.
        after = {key: latest[key] - 2 * CLOCK_STEP for key, _ in close.values()}
        arrivals = self._downstream.received_after(self._group, self._source, after, since=since)
        numbered = self._numbered(arrivals)
        return overtaken | {
            event_id
            for event_id, (key, line) in close.items()
            if key in numbered and numbered[key].overtake(line)
        }

    def _numbered(self, arrivals: Sequence[Arrival]) -> Mapping[Key, _Arrivals]:
        """Return what the group has received by key, with the numbers that its outbox gave it."""
        by_key: dict[Key, list[tuple[datetime, int]]] = defaultdict(list)
        for part in slices(arrivals, _LOOKED_UP):
            lines = self._upstream.lines([arrival.event_id for arrival in part])
            for arrival in part:
                line = lines.get(arrival.event_id)
                seq = _UNKNOWN if line is None else line.seq
                by_key[arrival.ordered_by].append((arrival.written_at, seq))
        return {key: _Arrivals(found) for key, found in by_key.items()}


class _Arrivals:
    """What a group has received of one key."""

    def __init__(self, found: Iterable[tuple[datetime, int]]) -> None:
        in_order = sorted(found)
        self._times = [written_at for written_at, _ in in_order]
        self._latest_unknown = max((at for at, seq in in_order if seq == _UNKNOWN), default=None)
        # Of each one and those behind it: the highest number.
        highest = accumulate((seq for _, seq in reversed(in_order)), max)
        self._highest_from = list(highest)[::-1]

    def overtake(self, line: Line) -> bool:
        """Whether one of them is later than an event.

        What the outbox has forgotten may have had any number, so that its time decides.
        """
        if self._latest_unknown is not None and self._latest_unknown >= line.written_at:
            return True
        first = bisect_left(self._times, line.written_at - CLOCK_STEP)
        return first < len(self._times) and self._highest_from[first] > line.seq
