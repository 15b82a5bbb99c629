"""The events that a run judges, and the watermarks from which the next run may start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

from shieldtx.reconcile.findings import Findings
from shieldtx.reconcile.request import EVERYTHING, Selection
from shieldtx.reconcile.verdicts import Verdict


class Mode(StrEnum):
    """How many events a run judges."""

    FULL = "FULL"
    """All events that are kept."""

    INCREMENTAL = "INCREMENTAL"
    """Events that have changed since the watermarks of the last good run, and all that are open or
    wait for an operator."""

    WINDOW = "WINDOW"
    """The events that were written in a span of time."""


FOUND_AGAIN: Final = frozenset({Verdict.STUCK, Verdict.PARKED})
"""Mismatches that an incremental run finds whatever their age: their rows are open, or have a
status that waits for an operator."""


def selection_since(watermarks: Mapping[str, datetime] | None) -> Selection:
    """Return the events of an incremental run; all events where no run was good yet."""
    return Selection(moved_since=watermarks) if watermarks else EVERYTHING


def mode_of(selection: Selection) -> Mode:
    """Return the mode of a selection."""
    if selection.written_since or selection.written_until:
        return Mode.WINDOW
    return Mode.INCREMENTAL if selection.moved_since else Mode.FULL


def is_good(findings: Findings, mode: Mode) -> bool:
    """Return whether no later run has to judge anything before the run's watermarks again.

    False if only a window was judged, or if a later run may judge what this one could not. Also
    false if an incremental run would miss a mismatch because of its age.
    """
    return (
        mode is not Mode.WINDOW
        and not findings.hindrances
        and not any(v.is_mismatch and v not in FOUND_AGAIN for v in findings.totals)
    )


def watermarks_of(findings: Findings) -> dict[str, datetime]:
    """Return, by service, the time up to which all its pairs were judged.

    A service with a pair that could not be judged has no watermark. No watermark is later than the
    start of the run less the margin, by the clock of the run's machine. Otherwise, after a database
    clock that was ahead is corrected, rows could be settled before the watermark.
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
