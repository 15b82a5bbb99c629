"""Which events a run looks at, and from where the next one may start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

from shieldtx.reconcile.findings import Findings
from shieldtx.reconcile.request import EVERYTHING, Selection
from shieldtx.reconcile.verdicts import Verdict


class Mode(StrEnum):
    """How much a run looks at."""

    FULL = "FULL"
    """All events that are kept."""

    INCREMENTAL = "INCREMENTAL"
    """What has moved since the watermarks of the last good run, and all that is open or waits for a
    person."""

    WINDOW = "WINDOW"
    """The events that were written in a span of time."""


FOUND_AGAIN: Final = frozenset({Verdict.STUCK, Verdict.PARKED})
"""Mismatches that an incremental run finds however old they are: their rows are open, or have the
status of those that wait for an operator."""


def selection_since(watermarks: Mapping[str, datetime] | None) -> Selection:
    """Return what an incremental run looks at; all there is where no run was good yet."""
    return Selection(moved_since=watermarks) if watermarks else EVERYTHING


def mode_of(selection: Selection) -> Mode:
    """Return how much a selection is."""
    if selection.written_since or selection.written_until:
        return Mode.WINDOW
    return Mode.INCREMENTAL if selection.moved_since else Mode.FULL


def is_good(findings: Findings, mode: Mode) -> bool:
    """Whether nothing before the run's watermarks has to be looked at again.

    So not where a mismatch was found that only its age hides from an incremental run, where
    something could not be judged that a later run may judge, or where only a window was looked at.
    """
    return (
        mode is not Mode.WINDOW
        and not findings.hindrances
        and not any(v.is_mismatch and v not in FOUND_AGAIN for v in findings.totals)
    )


def watermarks_of(findings: Findings) -> dict[str, datetime]:
    """Return by service up to when all of its events were judged: the earliest of its pairs.

    A service with a pair that could not be judged has none. They are no later than by the clock of
    the machine of the run. Where that of a database is ahead, what is settled after it was set
    right would lie before the watermark.
    """
    latest = findings.started_at - findings.margin
    found = {service: min(since, latest) for service, since in findings.idle.items()}
    unjudged: set[str] = set()
    for bounds in findings.bounds:
        watermark = bounds.window.watermark
        services = (bounds.upstream, bounds.downstream)
        if watermark is None:
            unjudged.update(services)
            continue
        for service in services:
            found[service] = min(watermark, found.get(service, latest))
    return {service: until for service, until in found.items() if service not in unjudged}
