"""The report for readers: one HTML page without external resources and scripts.

The markup is in `templates/`; this module has the values that the templates show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from shieldtx._extras import import_extra
from shieldtx.reconcile.findings import (
    PAYLOAD_LETTERS,
    TOPICS,
    Day,
    Findings,
    FoundRow,
    Pair,
    RunOutcome,
)
from shieldtx.reconcile.report import charts, labels, row_tables
from shieldtx.reconcile.verdicts import Verdict, Weight

if TYPE_CHECKING:
    from jinja2 import Environment

_WEIGHTS: Mapping[RunOutcome, Weight] = {
    RunOutcome.CLEAN: Weight.CLEAN,
    RunOutcome.MISMATCHES: Weight.MISMATCH,
    RunOutcome.NOT_JUDGED: Weight.UNJUDGED,
    RunOutcome.ERROR: Weight.MISMATCH,
}


def page(findings: Findings) -> str:
    """Return the report as one page."""
    totals = findings.totals
    weights = labels.weighed(totals)
    present = labels.present(totals)
    first_rows = _first_rows(findings)
    obstacles = _obstacles(findings)
    always = (Weight.MISMATCH, Weight.CLEAN)
    explained = (Weight.MISMATCH, Weight.UNJUDGED)
    return (
        _templates()
        .get_template("page.html")
        .render(
            findings=findings,
            weight=_WEIGHTS[findings.outcome],
            totals=totals,
            weights=weights,
            columns=[weight for weight, events in weights.items() if events or weight in always],
            obstacles=obstacles,
            unjudged=[v for v in present if v.weight is Weight.UNJUDGED],
            repairable=[v for v in present if labels.is_repairable(v)],
            repair_command=labels.repair_command(findings),
            listed=[v for v in present if v.is_mismatch or v in first_rows],
            tables={verdict: row_tables.tables_of(rows) for verdict, rows in first_rows.items()},
            are_masked=all(row.payload is None for row in findings.first_rows),
            others_of=_others_of(findings),
            days=_days(findings),
            others=[v for v in present if v.weight not in explained],
        )
    )


def bytes_of(row: FoundRow, *, is_first: bool) -> int:
    """Return the number of bytes of a row on the page; of a table's first row, with its table."""
    (table,) = row_tables.tables_of([row])
    longest = sorted(Verdict, key=len)[-row_tables.OTHERS_NAMED :]
    of_row = (
        _templates()
        .get_template("row.html")
        .render(row=row, table=table, others_of=lambda _: longest)
    )
    of_table = _templates().get_template("rows.html").render(table=replace(table, rows=()))
    return len(of_row.encode()) + (len(of_table.encode()) if is_first else 0)


def _others_of(findings: Findings) -> Callable[[FoundRow], list[Verdict]]:
    """Return a function that returns the other mismatches of a row's event."""
    by_event = row_tables.mismatches_by_event(findings.first_rows)

    def others(row: FoundRow) -> list[Verdict]:
        known = by_event.get((row.pair.upstream, row.event_id), ())
        return [verdict for verdict in known if verdict is not row.verdict]

    return others


def _anchor(verdict: Verdict) -> str:
    """Return the anchor of a verdict's section on the page."""
    return verdict.replace("_", "-").lower()


def _obstacles(findings: Findings) -> dict[str, list[str]]:
    """Return the reasons why events were not judged, each with the directions that it concerns."""
    directions: dict[str, list[str]] = {}
    for bounds in findings.bounds:
        if bounds.window.obstacle:
            directions.setdefault(bounds.window.obstacle, []).append(labels.direction(bounds))
    others = (*findings.obstacles, *findings.passing_problems)
    return directions | {each: [] for each in others if each not in directions}


def _first_rows(findings: Findings) -> dict[Verdict, list[FoundRow]]:
    rows: dict[Verdict, list[FoundRow]] = {}
    for row in findings.first_rows:
        rows.setdefault(row.verdict, []).append(row)
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class _PairDays:
    """The days of a pair, the earliest first: the page shows the latest, and counts the others."""

    pair: Pair
    days: Sequence[Day]

    @property
    def earlier(self) -> Sequence[Day]:
        return self.days[: -charts.DAYS_SHOWN]

    @property
    def shown(self) -> Sequence[Day]:
        return self.days[-charts.DAYS_SHOWN :]

    @property
    def are_few(self) -> bool:
        return len(self.shown) < charts.LEAST_DAYS

    @property
    def plots(self) -> Iterable[charts.Chart]:
        published = [(day.day, day.publish_ms) for day in self.shown]
        settled = [(day.day, day.effect_ms) for day in self.shown]
        if self.are_few:
            return ()
        drawn = (
            charts.counts(self.shown),
            charts.delays(published, name="published", title="From written to published"),
            charts.delays(settled, name="settled", title="From written to settled downstream"),
        )
        return [chart for chart in drawn if chart is not None]


def _days(findings: Findings) -> list[_PairDays]:
    by_pair: dict[Pair, list[Day]] = {}
    for day in findings.days:
        by_pair.setdefault(day.pair, []).append(day)
    return [
        _PairDays(pair=pair, days=sorted(days, key=lambda day: day.day))
        for pair, days in by_pair.items()
    ]


def _grouped(number: int) -> str:
    return f"{number:,}"


def _coordinate(value: float) -> str:
    return f"{value:.5g}"


@cache
def _templates() -> Environment:
    with import_extra("the report of a reconciliation"):
        from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    # Every text is escaped; an unknown name in a template is an error, not an empty text.
    templates = Environment(
        loader=PackageLoader("shieldtx.reconcile.report"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {
        "FRAME": charts.FRAME,
        "PAYLOAD_LETTERS": PAYLOAD_LETTERS,
        "OTHERS_NAMED": row_tables.OTHERS_NAMED,
        "TOPICS": TOPICS,
        "WEIGHTS": labels.WEIGHTS,
    }
    templates.filters |= {
        "anchor": _anchor,
        "coordinate": _coordinate,
        "counted": labels.counted,
        "direction": labels.direction,
        "duration": labels.duration,
        "from_when": labels.from_when,
        "grouped": _grouped,
        "headline": labels.headline,
        "instant": labels.instant,
        "judged": labels.judged,
        "moment": labels.moment,
        "name": labels.name,
        "present": labels.present,
        "since_earlier_run": labels.since_earlier_run,
        "steps": row_tables.steps_of,
        "until_when": labels.until_when,
        "visible": labels.visible,
        "without_room": labels.without_room,
    }
    return templates
