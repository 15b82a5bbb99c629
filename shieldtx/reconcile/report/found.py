"""The mismatches of a run on its page: what each means, what to do, and its first rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from shieldtx.reconcile.findings import TOPICS, Findings, FoundRow
from shieldtx.reconcile.report import labels
from shieldtx.reconcile.report.markup import (
    Markup,
    code,
    definitions,
    element,
    foreign,
    joined,
    with_code,
)
from shieldtx.reconcile.verdicts import Verdict

PAYLOAD_LETTERS = 2_000
"""So much of a payload at most: a page of large ones would be of use to nobody."""
_UNKNOWN = "\N{EN DASH}"
_CLOCKS = (
    "Times are in UTC: written and published by the upstream's clock, received and settled by the "
    "downstream's. A record is told by its partition and offset."
)
_MASKED = "masked; `--show-payloads` shows it"


def mismatches(findings: Findings) -> Markup:
    """Return a part for each mismatch, and for any other verdict of which rows are given."""
    given = {row.verdict for row in findings.first_rows}
    shown = [v for v in labels.present(findings.totals) if v.is_mismatch or v in given]
    if not shown:
        return element("p", "None.")
    return joined(
        element("p", _CLOCKS, class_="soft") if findings.first_rows else None,
        *(_part(verdict, findings) for verdict in shown),
    )


def anchor(verdict: Verdict) -> str:
    """Return the name by which the page links to a verdict's part."""
    return verdict.replace("_", "-").lower()


def _part(verdict: Verdict, findings: Findings) -> Markup:
    rows = [row for row in findings.first_rows if row.verdict is verdict]
    number = findings.totals[verdict]
    return element(
        "section",
        element("h3", f"{labels.name(verdict).capitalize()}: {number:,}"),
        element("p", verdict.meaning),
        element("p", element("b", "What to do: "), with_code(verdict.advice)),
        _share(len(rows), number),
        element("ol", *(_row(row) for row in rows), class_="rows") if rows else None,
        id=anchor(verdict),
        class_=f"verdict {verdict.weight.lower()}",
    )


def _share(shown: int, number: int) -> Markup | None:
    if shown == number:
        return None
    share = f"The first {shown:,} of {number:,}" if shown else "None is shown here"
    return element("p", with_code(f"{share}; all are in `rows/`."), class_="soft")


def _row(row: FoundRow) -> Markup:
    return element(
        "li",
        element("h4", code(row.event_id)),
        definitions((*_origin(row), *_state(row)), class_="facts"),
        definitions(_times(row), class_="facts steps"),
        element("div", "Payload", _payload(row.payload), class_="payload"),
    )


def _origin(row: FoundRow) -> Iterable[tuple[str, Markup]]:
    of_topics = row.pair.downstream == TOPICS
    yield "Events", foreign(labels.direction(row.pair))
    if not of_topics:
        yield "Group", foreign(row.pair.group)
    yield "Topic", foreign(row.topic)
    yield "Type", foreign(row.event_type)
    if row.causation_id is not None:
        yield "Caused by", code(row.causation_id)


def _state(row: FoundRow) -> Iterable[tuple[str, str]]:
    of_topics = row.pair.downstream == TOPICS
    yield "Upstream", row.upstream_status or "no row"
    if not of_topics:
        yield "Downstream", row.downstream_status or "no row"
    if row.attempts is not None:
        yield "Attempts", f"{row.attempts:,}"
    if of_topics or row.record is not None:
        yield "Record", "none" if row.record is None else code(row.record)


def _times(row: FoundRow) -> Iterable[tuple[str, Markup]]:
    """Name the steps of an event, each with what has passed since the one before it."""
    steps = [("Written", row.created_at), ("Published", row.published_at)]
    if row.pair.downstream != TOPICS:
        steps += [("Received", row.received_at), ("Settled", row.settled_at)]
    before: datetime | None = None
    for name, when in steps:
        yield name, _time(when, before)
        before = when or before


def _time(when: datetime | None, before: datetime | None) -> Markup:
    if when is None:
        return joined(_UNKNOWN)
    exact = element("time", labels.instant(when), datetime=when.isoformat(timespec="microseconds"))
    if before is None:
        return exact
    gone = (when - before).total_seconds()
    sign = "+" if gone >= 0 else ""
    return joined(exact, " ", element("small", f"{sign}{labels.duration(gone)}"))


def _payload(payload: str | None) -> Markup:
    if payload is None:
        return joined(": ", with_code(_MASKED))
    cut = len(payload) - PAYLOAD_LETTERS
    return joined(
        element("p", code(payload[:PAYLOAD_LETTERS])),
        f"and {labels.counted(cut, 'more character', 'more characters')}" if cut > 0 else None,
    )
