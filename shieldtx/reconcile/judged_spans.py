"""The times up to which earlier runs have judged, and the events that no run can judge any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations_with_replacement
from typing import Final

from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.window import Window

ENOUGH: Final = 100
"""The number of runs after which reading stops, if all streams are known: later runs judge later
events."""

Services = tuple[str, str]
"""The two services of a stream, ordered by name; the same name twice if one service has both ends.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRun:
    """A completed run, good or not: the report of the run lists what it could not judge."""

    started_at: datetime
    services: frozenset[str]
    """All services that the run compared."""
    watermarks: Mapping[str, datetime]
    """By service: the time up to which all its streams were judged. A service without an entry had
    no events, or a stream that the run could not judge."""
    histories: Mapping[str, DatabaseHistory] = field(default_factory=dict)
    """By service with a watermark: its database, before anything was read."""
    restored: Mapping[Services, Mapping[str, datetime | None]] = field(default_factory=dict)
    """By pair, and by service of the pair that was restored from an earlier copy after the run: the
    time up to which the copy has the events that the run judged; None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedUntil:
    """The time up to which runs have judged the events between two services."""

    services: Services
    until: datetime | None
    """None: not known, because of the restored databases."""
    restored: tuple[str, ...] = ()
    """Services of the pair whose databases have since been restored from earlier copies."""

    def or_later(self, other: JudgedUntil | None) -> JudgedUntil:
        """Return the later one of two."""
        if other is None:
            return self
        known = (each.until for each in (self, other) if each.until is not None)
        return replace(
            self,
            until=max(known, default=None),
            restored=tuple(sorted({*self.restored, *other.restored})),
        )

    def is_before(self, time: datetime) -> bool:
        """Return whether events before a time may not have been judged."""
        return self.until is None or self.until < time


def pairs_of(services: Collection[str]) -> list[Services]:
    """Return all pairs of these services, also of each service with itself."""
    return list(combinations_with_replacement(sorted(services), 2))


def judged_until(runs: Iterable[JudgedRun], services: Collection[str]) -> tuple[JudgedUntil, ...]:
    """Return the time up to which runs, the latest first, have judged each pair of these services.

    A pair is left out if no run has judged all its events: its time is not known.
    """
    wanted = set(pairs_of(services))
    found: dict[Services, JudgedUntil] = {}
    for number, run in enumerate(runs, start=1):
        for pair in wanted:
            until = _until(pair, run)
            if until is not None:
                found[pair] = until.or_later(found.get(pair))
        if number >= ENOUGH and wanted == found.keys():
            break
    return tuple(found[pair] for pair in sorted(found))


def _until(pair: Services, run: JudgedRun) -> JudgedUntil | None:
    """Return the time up to which a run has judged the stream of two services.

    A service's watermark is the earliest of its streams, so that of this stream is not earlier.
    Rows that a database has lost since count as not judged.
    """
    if not run.services.issuperset(pair):
        return None
    known = [run.watermarks[name] for name in pair if name in run.watermarks]
    if not known:
        return None
    restored = run.restored.get(pair, {})
    bounds = [max(known), *(until for until in restored.values() if until is not None)]
    return JudgedUntil(
        services=pair,
        until=None if None in restored.values() else min(bounds),
        restored=tuple(restored),
    )


def unjudged_spans(windows: Mapping[Stream, Window], earlier: Iterable[JudgedUntil]) -> list[str]:
    """Return sentences for times that no run has judged, and whose rows may have been purged since.

    Without an earlier run of both services, nothing is known of the time before.
    """
    known = {each.services: each for each in earlier}
    return list(dict.fromkeys(_unjudged(windows, known)))


def _unjudged(
    windows: Mapping[Stream, Window], known: Mapping[Services, JudgedUntil]
) -> Iterator[str]:
    for stream, window in windows.items():
        first, second = sorted((stream.upstream, stream.downstream))
        judged = known.get((first, second))
        if window.horizon is None or judged is None or not judged.is_before(window.horizon):
            continue
        since = "" if judged.until is None else f"from {judged.until:%Y-%m-%d %H:%M:%S%z} "
        why = _RESTORED.format(" and ".join(judged.restored)) if judged.restored else _NOT_IN_TIME
        yield (
            f"no run has judged the events between {first} and {second} {since}to "
            f"{window.horizon:%Y-%m-%d %H:%M:%S%z}: {why}, and their rows may have been purged "
            "since. What was lost then is not reported: compare that time by other means. The next "
            "run begins after it; reconcile more often than the shortest retention"
        )


_NOT_IN_TIME: Final = (
    "no run took place in time, or none could judge them, or a transaction ran for so long that "
    "all of them were in flight"
)
_RESTORED: Final = (
    "the database of {} was restored from an earlier copy, or rows of that time were deleted, so "
    "that what runs had judged is not there any more"
)
