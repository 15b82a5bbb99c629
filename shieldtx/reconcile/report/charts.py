"""The days of a pair as pictures: SVG made by hand, in the colours of the page around it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date

from shieldtx.reconcile.findings import Day
from shieldtx.reconcile.report.chart_axes import CountAxis, DayAxis, DelayAxis, Tick, apart
from shieldtx.reconcile.report.labels import counted, duration
from shieldtx.reconcile.report.markup import Markup, element, joined

DAYS_SHOWN = 92
"""A quarter: more bars than that cannot be told apart on a telephone."""
PERCENTILES = ("p50", "p90", "p99")

WIDTH, HEIGHT = 360.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 326.0, 12.0, 166.0
_BAR_SHARE, _BAR_AT_MOST = 0.72, 26.0
_SEEN = 2.5
"""So high at least is what must not be overlooked."""
_LINE_HEIGHT = 11.0


def counts(days: Sequence[Day], *, identity: str) -> Markup:
    """Draw the events of each day as a bar, and the mismatches among them at its top.

    However few they are, mismatches can be seen: their part of the bar is made high enough.
    """
    axis = _day_axis(days)
    scale = CountAxis(largest=max(day.events for day in days), bottom=BOTTOM, top=TOP)
    width = min(axis.step * _BAR_SHARE, _BAR_AT_MOST)
    events, mismatches = (sum(d.events for d in days), sum(d.mismatches for d in days))
    return _plot(
        "Events by the day on which they were written",
        f"{_span(days)}: {counted(events, 'event', 'events')}, "
        f"{counted(mismatches, 'mismatch', 'mismatches')}.",
        _grid(scale.ticks),
        *(_bar(day, axis.at(day.day) - width / 2, width, scale) for day in days),
        _days(axis),
        identity=identity,
    )


def delays(
    days: Sequence[tuple[date, tuple[float, ...] | None]], *, title: str, identity: str
) -> Markup | None:
    """Draw the percentiles of a delay as lines over the days; None where no day has any.

    A day without breaks the lines, and one between two such days is a point.
    """
    known = [(day, each) for day, each in days if each and all(map(math.isfinite, each))]
    if not known:
        return None
    axis = DayAxis(first=days[0][0], last=days[-1][0], left=LEFT, right=RIGHT)
    values = [value for _, each in known for value in each]
    scale = DelayAxis(shortest=min(values), longest=max(values), bottom=BOTTOM, top=TOP)
    runs = list(_runs(known))
    lines = [
        _line([[(axis.at(day), scale.at(each[n])) for day, each in run] for run in runs], name)
        for n, name in enumerate(PERCENTILES)
    ]
    last_day, last = known[-1]
    longest = max(each[-1] for _, each in known)
    return _plot(
        title,
        f"{last_day:%Y-%m-%d}: "
        + ", ".join(
            f"{name} {duration(value / 1000)}"
            for name, value in zip(PERCENTILES, last, strict=True)
        )
        + f". The longest p99 of a day: {duration(longest / 1000)}.",
        _grid(scale.ticks),
        *lines,
        _names([scale.at(value) for value in last], axis.at(last_day)),
        _days(axis),
        identity=identity,
    )


def _plot(title: str, description: str, *content: Markup, identity: str) -> Markup:
    return element(
        "svg",
        element("title", title, id=f"{identity}-title"),
        element("desc", description, id=f"{identity}-desc"),
        *content,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_labelledby=f"{identity}-title {identity}-desc",
    )


def _bar(day: Day, x: float, width: float, scale: CountAxis) -> Markup:
    """Draw the bar of a day: mismatches on top of what is in order or not judged."""
    whole = max(BOTTOM - scale.at(day.events), _SEEN if day.mismatches else 0.0)
    wrong = max(BOTTOM - scale.at(day.mismatches), _SEEN) if day.mismatches else 0.0
    wrong = min(wrong, whole)
    return element(
        "g",
        element(
            "title",
            f"{day.day}: {counted(day.events, 'event', 'events')}, "
            f"{counted(day.mismatches, 'mismatch', 'mismatches')}",
        ),
        _rectangle(x, BOTTOM - whole + wrong, width, whole - wrong, "bar"),
        _rectangle(x, BOTTOM - whole, width, wrong, "bar wrong"),
    )


def _rectangle(x: float, y: float, width: float, height: float, class_: str) -> Markup | None:
    if height <= 0:
        return None
    return element("rect", x=x, y=y, width=width, height=height, class_=class_)


def _line(runs: Iterable[Sequence[tuple[float, float]]], name: str) -> Markup:
    drawn = [
        element("circle", cx=run[0][0], cy=run[0][1], r="2.2", class_=name)
        if len(run) == 1
        else element(
            "polyline",
            points=" ".join(f"{x:.5g},{y:.5g}" for x, y in run),
            class_=f"line {name}",
        )
        for run in runs
    ]
    return element("g", *drawn)


def _names(heights: Sequence[float], x: float) -> Markup:
    """Write the percentiles' names behind the ends of their lines."""
    positions = apart(heights, gap=_LINE_HEIGHT, lowest=BOTTOM, highest=TOP)
    return joined(
        *(
            element("text", name, x=x + 6, y=y + 3.5, class_=name)
            for name, y in zip(PERCENTILES, positions, strict=True)
        )
    )


def _grid(ticks: Iterable[Tick]) -> Markup:
    return joined(
        *(
            joined(
                element("line", x1=LEFT, x2=RIGHT, y1=tick.position, y2=tick.position),
                element("text", tick.label, x=LEFT - 6, y=tick.position + 3.5, text_anchor="end"),
            )
            for tick in ticks
        )
    )


def _days(axis: DayAxis) -> Markup:
    return joined(
        *(
            element("text", tick.label, x=tick.position, y=BOTTOM + 16, text_anchor="middle")
            for tick in axis.ticks
        )
    )


def _day_axis(days: Sequence[Day]) -> DayAxis:
    return DayAxis(first=days[0].day, last=days[-1].day, left=LEFT, right=RIGHT)


def _span(days: Sequence[Day]) -> str:
    first, last = days[0].day, days[-1].day
    return f"{first}" if first == last else f"{first} to {last}"


def _runs(
    known: Sequence[tuple[date, tuple[float, ...]]],
) -> Iterable[list[tuple[date, tuple[float, ...]]]]:
    """Split days where one in between is missing."""
    run: list[tuple[date, tuple[float, ...]]] = []
    for day, each in known:
        if run and (day - run[-1][0]).days > 1:
            yield run
            run = []
        run.append((day, each))
    yield run
