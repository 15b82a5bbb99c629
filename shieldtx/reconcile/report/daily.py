"""The days of a run on its page: plots for each pair, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from shieldtx.reconcile.findings import Day, Findings, Pair
from shieldtx.reconcile.report import charts, labels
from shieldtx.reconcile.report.markup import Markup, element, foreign, joined, table

_UNTIL_PUBLISHED = "From written to published"
_UNTIL_SETTLED = "From written to settled downstream"
_PERCENTILES = ", ".join(charts.PERCENTILES)
_HEADS = (
    *("Day (UTC)", "Events", "Mismatches"),
    *(f"Published: {_PERCENTILES}", f"Settled: {_PERCENTILES}"),
)


def daily(findings: Findings) -> Markup:
    """Return the plots of each pair that has days."""
    by_pair: dict[Pair, list[Day]] = {}
    for day in findings.days:
        by_pair.setdefault(day.pair, []).append(day)
    if not by_pair:
        return element("p", "There are no days to show.")
    return joined(
        element(
            "p",
            "By the day on which events were written, in UTC. Delays on a scale of powers: half of "
            "the events took no longer than p50, 99 of 100 no longer than p99. The time to their "
            "settlement takes both databases' clocks as one. All but the mismatches are estimates "
            "from a sample where tables are large.",
            class_="soft",
        ),
        *(
            _part(pair, sorted(days, key=lambda day: day.day), number)
            for number, (pair, days) in enumerate(by_pair.items(), start=1)
        ),
    )


def _part(pair: Pair, days: Sequence[Day], number: int) -> Markup:
    shown = days[-charts.DAYS_SHOWN :]
    drawings = (
        (
            "Events, and mismatches among them",
            charts.counts(shown, identity=f"plot-{number}-events"),
        ),
        (
            _UNTIL_PUBLISHED,
            charts.delays(
                [(day.day, day.publish_ms) for day in shown],
                title=_UNTIL_PUBLISHED,
                identity=f"plot-{number}-published",
            ),
        ),
        (
            _UNTIL_SETTLED,
            charts.delays(
                [(day.day, day.effect_ms) for day in shown],
                title=_UNTIL_SETTLED,
                identity=f"plot-{number}-settled",
            ),
        ),
    )
    return element(
        "section",
        element("h3", foreign(labels.direction(pair)), ", ", foreign(pair.group)),
        _earlier(days[: -charts.DAYS_SHOWN]),
        element(
            "div",
            *(
                element("figure", element("figcaption", caption), drawing)
                for caption, drawing in drawings
                if drawing
            ),
            class_="plots",
        ),
        element("details", element("summary", "The numbers of these plots"), _numbers(shown)),
        class_="pair",
    )


def _earlier(days: Sequence[Day]) -> Markup | None:
    if not days:
        return None
    mismatches = sum(day.mismatches for day in days)
    return element(
        "p",
        f"{labels.counted(len(days), 'earlier day', 'earlier days')} not shown, with "
        f"{labels.counted(mismatches, 'mismatch', 'mismatches')}.",
        class_="soft",
    )


def _numbers(days: Sequence[Day]) -> Markup:
    return table(
        _HEADS,
        (
            [
                f"{day.day}",
                f"{day.events:,}",
                f"{day.mismatches:,}",
                _delays(day.publish_ms),
                _delays(day.effect_ms),
            ]
            for day in days
        ),
        numbers_from=1,
        class_="numbers",
    )


def _delays(delays: tuple[float, ...] | None) -> str:
    if not delays:
        return "\N{EN DASH}"
    whole = (labels.duration(each / 1000).replace(" ", "\N{NO-BREAK SPACE}") for each in delays)
    return ", ".join(whole)
