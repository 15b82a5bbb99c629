"""The days of a pair as charts: titles and positions. `templates/chart.svg` draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from shieldtx.reconcile.findings import Day
from shieldtx.reconcile.report.chart_axes import CountAxis, DayAxis, DelayAxis, Tick, apart
from shieldtx.reconcile.report.labels import counted, duration

DAYS_SHOWN = 92
"""A quarter of a year: more bars cannot be distinguished on a telephone."""
LEAST_DAYS = 3
"""Fewer days are shown as numbers: a line of two points shows nothing."""
PERCENTILES = ("p50", "p90", "p99")

_BAR_SHARE, _BAR_AT_MOST = 0.72, 26.0
_SEEN = 2.5
"""The minimum height of parts that must not be overlooked."""
_LINE_HEIGHT = 11.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The size of a chart, and the edges of the plot in it; y grows downwards."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


FRAME = Frame(width=360, height=190, left=46, right=326, top=12, bottom=166)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """The events of a day: the height of the mismatches, above the height of the rest."""

    title: str
    x: float
    width: float
    top: float
    wrong: float
    rest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A position in a chart."""

    x: float
    y: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A percentile over the days: one run of points per days without a gap, and a label."""

    name: str
    runs: Sequence[Sequence[Point]]
    label: Point


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Bars or lines over days; `name` distinguishes the charts of a pair."""

    name: str
    caption: str
    title: str
    description: str
    values: Sequence[Tick]
    days: Sequence[Tick]
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()


def counts(days: Sequence[Day]) -> Chart:
    """Return the events of each day as a bar, with the mismatches among them at its top.

    A minimum height makes even few mismatches visible.
    """
    axis = _day_axis(days[0].day, days[-1].day)
    scale = CountAxis(largest=max(d.events for d in days), bottom=FRAME.bottom, top=FRAME.top)
    events, mismatches = (sum(d.events for d in days), sum(d.mismatches for d in days))
    return Chart(
        name="events",
        caption="Events, and mismatches among them",
        title="Events by the day on which they were written",
        description=f"{_span(days)}: {_content(events, mismatches)}.",
        values=scale.ticks,
        days=axis.ticks,
        bars=[_bar(day, axis, scale) for day in days],
    )


def delays(
    days: Sequence[tuple[date, tuple[float, ...] | None]], *, name: str, title: str
) -> Chart | None:
    """Return the percentiles of a delay as lines over the days; None if no day has values.

    A day without values breaks the lines, and a day between two such days is a point.
    """
    known = [(day, each) for day, each in days if each and all(map(math.isfinite, each))]
    if not known:
        return None
    axis = _day_axis(days[0][0], days[-1][0])
    values = [value for _, each in known for value in each]
    scale = DelayAxis(shortest=min(values), longest=max(values), bottom=FRAME.bottom, top=FRAME.top)
    last_day, last = known[-1]
    latest = ", ".join(
        f"{percentile} {duration(value / 1000)}"
        for percentile, value in zip(PERCENTILES, last, strict=True)
    )
    longest = max(each[-1] for _, each in known)
    return Chart(
        name=name,
        caption=title,
        title=title,
        description=f"{last_day}: {latest}. The longest p99 of a day: {duration(longest / 1000)}.",
        values=scale.ticks,
        days=axis.ticks,
        lines=_lines(known, axis, scale),
    )


def _bar(day: Day, axis: DayAxis, scale: CountAxis) -> Bar:
    width = min(axis.step * _BAR_SHARE, _BAR_AT_MOST)
    whole = max(FRAME.bottom - scale.at(day.events), _SEEN if day.mismatches else 0.0)
    wrong = max(FRAME.bottom - scale.at(day.mismatches), _SEEN) if day.mismatches else 0.0
    wrong = min(wrong, whole)
    return Bar(
        title=f"{day.day}: {_content(day.events, day.mismatches)}",
        x=axis.at(day.day) - width / 2,
        width=width,
        top=FRAME.bottom - whole,
        wrong=wrong,
        rest=whole - wrong,
    )


def _lines(
    known: Sequence[tuple[date, tuple[float, ...]]], axis: DayAxis, scale: DelayAxis
) -> list[Line]:
    """Return a line for each percentile, with its name after its end."""
    runs = list(_runs(known))
    last_day, last = known[-1]
    heights = apart(
        [scale.at(value) for value in last],
        gap=_LINE_HEIGHT,
        lowest=FRAME.bottom,
        highest=FRAME.top,
    )
    return [
        Line(
            name=name,
            runs=[
                [Point(x=axis.at(day), y=scale.at(each[n])) for day, each in run] for run in runs
            ],
            label=Point(x=axis.at(last_day), y=height),
        )
        for n, (name, height) in enumerate(zip(PERCENTILES, heights, strict=True))
    ]


def _runs(
    known: Sequence[tuple[date, tuple[float, ...]]],
) -> Iterable[list[tuple[date, tuple[float, ...]]]]:
    """Split days into runs without gaps."""
    run: list[tuple[date, tuple[float, ...]]] = []
    for day, each in known:
        if run and (day - run[-1][0]).days > 1:
            yield run
            run = []
        run.append((day, each))
    yield run


def _day_axis(first: date, last: date) -> DayAxis:
    return DayAxis(first=first, last=last, left=FRAME.left, right=FRAME.right)


def _span(days: Sequence[Day]) -> str:
    first, last = days[0].day, days[-1].day
    return f"{first}" if first == last else f"{first} to {last}"


def _content(events: int, mismatches: int) -> str:
    return f"{counted(events, 'event', 'events')}, {counted(mismatches, 'mismatch', 'mismatches')}"
