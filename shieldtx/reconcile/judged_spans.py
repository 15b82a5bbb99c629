"""Up to when earlier runs have judged, and which events no run has judged or can judge any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations_with_replacement
from typing import Final

from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.window import Window

ENOUGH: Final = 100
"""Runs after which no earlier one is read, where all streams are known: later ones judge later."""

_Services = tuple[str, str]
"""The two of a stream, in the order of their names; twice the same where it is of one service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedRun:
    """A run that has ended, good or not: what a run could not judge is in its report."""

    started_at: datetime
    services: frozenset[str]
    """All that it compared."""
    watermarks: Mapping[str, datetime]
    """By service: up to when it has judged all streams of the service. A service without one has a
    stream that the run could not judge, or had no events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedUntil:
    """Up to when runs have judged the events between two services."""

    services: _Services
    until: datetime


def judged_until(runs: Iterable[JudgedRun], services: Collection[str]) -> tuple[JudgedUntil, ...]:
    """Return up to when runs, the latest first, have judged each two of these services.

    Two services of which no run has judged all are left out: nothing is known of them.
    """
    wanted = set(combinations_with_replacement(sorted(services), 2))
    found: dict[_Services, datetime] = {}
    for number, run in enumerate(runs, start=1):
        for pair in wanted:
            until = _until(pair, run)
            if until is not None:
                found[pair] = max(until, found.get(pair, until))
        if number >= ENOUGH and wanted == found.keys():
            break
    return tuple(JudgedUntil(services=pair, until=found[pair]) for pair in sorted(found))


def _until(pair: _Services, run: JudgedRun) -> datetime | None:
    """Return up to when a run has judged the stream of two services.

    A service's watermark is the earliest of its streams, so that of this stream is no earlier.
    """
    if not run.services.issuperset(pair):
        return None
    known = (run.watermarks[name] for name in pair if name in run.watermarks)
    return max(known, default=None)


def unjudged_spans(windows: Mapping[Stream, Window], earlier: Iterable[JudgedUntil]) -> list[str]:
    """Say in sentences between which times no run has judged, and rows may have been purged since.

    Without an earlier run of both services, nothing is known of the time before.
    """
    known = {each.services: each.until for each in earlier}
    return list(dict.fromkeys(_unjudged(windows, known)))


def _unjudged(
    windows: Mapping[Stream, Window], known: Mapping[_Services, datetime]
) -> Iterator[str]:
    for stream, window in windows.items():
        first, second = sorted((stream.upstream, stream.downstream))
        until = known.get((first, second))
        if window.horizon is not None and until is not None and until < window.horizon:
            yield _sentence(first, second, until, window.horizon)


def _sentence(one: str, other: str, since: datetime, until: datetime) -> str:
    return (
        f"no run has judged the events between {one} and {other} from "
        f"{since:%Y-%m-%d %H:%M:%S%z} to {until:%Y-%m-%d %H:%M:%S%z}: no run took place in time, "
        "or none could judge them, or a transaction ran for so long that all of them were in "
        "flight, and their rows may have been purged since. What was lost then is not reported: "
        "compare that time by other means. The next run begins after it; reconcile more often than "
        "the shortest retention"
    )
