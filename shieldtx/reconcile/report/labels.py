"""Texts for readers of findings: sentences, names, times and numbers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.findings import TOPICS, Bounds, Findings, Pair, RunOutcome
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.verdicts import Verdict, Weight
from shieldtx.reconcile.window import Window

REPAIR = "shieldtx reconcile repair"
"""The command that the advice of a repairable verdict names."""

WEIGHTS: Mapping[Weight, str] = {
    Weight.MISMATCH: "mismatches",
    Weight.NOTE: "notes",
    Weight.UNJUDGED: "not judged",
    Weight.CLEAN: "in order",
}
"""The common name of verdicts of a weight, the most urgent first."""

MINUS = "\N{MINUS SIGN}"
_NAMES = {Verdict.NOT_ON_TOPIC: "not sent"}
"""Names that cannot be confused with that of a mismatch; other verdicts have their own."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def headline(findings: Findings) -> str:
    """Return the outcome of the run in one or two sentences."""
    totals = weighed(findings.totals)
    match findings.outcome:
        case RunOutcome.MISMATCHES:
            found = counted(totals[Weight.MISMATCH], "mismatch", "mismatches")
            if findings.mismatched_events is not None:
                found += f" in {counted(findings.mismatched_events, 'event', 'events')}"
            caveat = " Not everything could be judged." if findings.problems else ""
            return f"{found}.{caveat}"
        case RunOutcome.NOT_JUDGED if not totals[Weight.CLEAN] + totals[Weight.NOTE]:
            return "Nothing could be judged."
        case RunOutcome.NOT_JUDGED:
            return "Not everything could be judged. Everything that was judged is in order."
        case RunOutcome.CLEAN if not findings.counts:
            return "Clean: there were no events to compare."
        case RunOutcome.CLEAN:
            return "Clean: everything that could be judged is in order."
        case RunOutcome.ERROR:
            return "The run failed."


def weighed(counts: Mapping[Verdict, int]) -> dict[Weight, int]:
    """Return the number of events by the weight of their verdicts, for each weight."""
    totals = dict.fromkeys(WEIGHTS, 0)
    for verdict, rows in counts.items():
        totals[verdict.weight] += rows
    return totals


def present(counts: Mapping[Verdict, int]) -> list[Verdict]:
    """Return the verdicts that occur, in the order of their definition."""
    return [verdict for verdict in Verdict if counts.get(verdict)]


def repair_command(findings: Findings) -> str | None:
    """Return the repair command; None if nothing can be repaired or the run is not stored."""
    can_help = any(is_repairable(verdict) for verdict in present(findings.totals))
    if not (can_help and findings.run_id):
        return None
    return shlex.join([*REPAIR.split(), findings.run_id, *findings.context.options])


def since_earlier_run(findings: Findings) -> str | None:
    """Return how the number of mismatches has changed; None if no run is comparable."""
    earlier = findings.context.earlier
    if earlier is None or earlier.totals is None:
        return None
    before = {v: earlier.totals.get(v.value, 0) for v in Verdict if v.is_mismatch}
    changes = {v: findings.totals[v] - number for v, number in before.items()}
    changed = {verdict: change for verdict, change in changes.items() if change}
    if not changed:
        return "no change"
    more = sum(change for change in changed.values() if change > 0)
    fewer = -sum(change for change in changed.values() if change < 0)
    signed = [*([f"+{more:,}"] if more else []), *([f"{MINUS}{fewer:,}"] if fewer else [])]
    of_each = (
        f"{'+' if change > 0 else MINUS}{abs(change):,} {name(verdict)}"
        for verdict, change in changed.items()
    )
    return f"{' '.join(signed)} ({', '.join(of_each)})"


def is_repairable(verdict: Verdict) -> bool:
    """Return whether the advice on a verdict is a repair."""
    return REPAIR in verdict.advice


def name(verdict: Verdict) -> str:
    """Return a verdict in lower case, with spaces."""
    return _NAMES.get(verdict) or verdict.replace("_", " ").lower()


def direction(of: Pair | Bounds) -> str:
    """Return the direction and the kind of events."""
    what = "rollbacks" if of.kind is TxKind.ROLLBACK else "events"
    downstream = "topics" if of.downstream == TOPICS else of.downstream
    return f"{of.upstream} \N{RIGHTWARDS ARROW} {downstream}, {what}"


def selected(selection: Selection) -> str:
    """Return a sentence about the events that the run judged."""
    since, until = moment(selection.written_since), moment(selection.written_until)
    if since or until:
        window = " ".join(
            [*([f"since {since}"] if since else []), *([f"before {until}"] if until else [])]
        )
        return f"Only events written {window}."
    if selection.moved_since:
        return (
            "Events that have moved since the last good run, and events that are open or wait for "
            "an operator: "
            + "; ".join(
                f"{service} since {moment(when)}"
                for service, when in sorted(selection.moved_since.items())
            )
            + "."
        )
    return "All events that are kept."


def judged(findings: Findings) -> str:
    """Return a sentence about the judged events, with the reasons for an unrequested full run."""
    if not findings.full_because:
        return selected(findings.selection)
    return f"{selected(findings.selection)} The reason: {'; '.join(findings.full_because)}."


def without_room(findings: Findings) -> str:
    """Return a sentence about the requested rows for which the page has no room."""
    rows = counted(findings.rows_without_room, "more requested row", "more requested rows")
    return f"the page has no room for {rows}: all rows are in rows/"


def from_when(window: Window) -> str:
    """Return the time from which rows were judged."""
    return moment(window.horizon) or "the first row"


def until_when(window: Window, started_at: datetime) -> str:
    """Return the time until which rows were judged, and its distance to the run."""
    if window.watermark is None:
        return "not known"
    before = started_at - window.watermark
    distance = (
        f"{duration(before)} before the run"
        if before >= timedelta(0)
        else f"{duration(-before)} after its start, by that clock"
    )
    return f"{moment(window.watermark)} ({distance})"


def moment(when: datetime | None) -> str:
    """Return a time in UTC, to the second; empty without one."""
    return "" if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def instant(when: datetime) -> str:
    """Return a time in UTC, to the millisecond, without the name of the time zone."""
    return when.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def duration(seconds: float | timedelta) -> str:
    """Return a duration in its two largest units; below a minute in one, with three digits."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if seconds < 0:
        return f"{MINUS}{duration(-seconds)}"
    if seconds < 0.9995:  # noqa: PLR2004  larger values are rounded up to a second
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 59.95:  # noqa: PLR2004  larger values are rounded up to a minute
        return f"{seconds:.3g} s"
    whole = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2]))


def counted(number: int, one: str, many: str) -> str:
    """Return a number with the matching form of the noun."""
    return f"{number:,} {one if number == 1 else many}"


def visible(text: str) -> str:
    """Return foreign text without characters that a terminal or a page would interpret.

    The writing direction is one such control: it could reorder the surrounding text.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )
