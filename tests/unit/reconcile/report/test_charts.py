"""The charts: the positions of their elements, empty plots, and the drawing."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx.reconcile.report import charts, html
from shieldtx.reconcile.report.chart_axes import CountAxis, DayAxis, DelayAxis, apart, short
from shieldtx.reconcile.report.charts import FRAME
from tests.support.html_reader import Page
from tests.support.sample_findings import PAIR, days, findings

FIRST = date(2026, 1, 1)


def counts(number=1, **changes):
    return charts.counts(days(PAIR, number, **changes))


def delays(*of_days, title="Delay"):
    each = [(FIRST + timedelta(days=n), delay) for n, delay in enumerate(of_days)]
    return charts.delays(each, name="delay", title=title)


@given(st.integers(0, 10**12))
def test_count_lies_inside_its_axis_with_a_round_maximum(largest):
    axis = CountAxis(largest=largest, bottom=100, top=0)
    assert largest <= axis.end
    assert str(int(axis.end)).rstrip("0") in {"1", "15", "2", "3", "4", "5", "6", "8"}
    assert axis.end <= max(largest, 1) * 1.5
    assert axis.at(0) == 100
    assert 0 <= axis.at(largest) <= 100
    assert axis.ticks[0].position == 100
    assert axis.ticks[-1].position == 0


@given(
    st.floats(min_value=-1e6, max_value=1e12, allow_nan=False),
    st.floats(min_value=-1e6, max_value=1e12, allow_nan=False),
)
def test_any_delay_lies_inside_its_axis(one, other):
    axis = DelayAxis(shortest=min(one, other), longest=max(one, other), bottom=100, top=0)
    assert len(axis.rungs) >= 2
    assert 0 <= axis.at(max(one, other)) <= axis.at(min(one, other)) <= 100
    assert axis.ticks[0].position == 100


def test_delays_have_a_logarithmic_axis():
    axis = DelayAxis(shortest=1, longest=100, bottom=100, top=0)
    assert [tick.label for tick in axis.ticks] == ["1 ms", "10 ms", "100 ms"]
    assert axis.at(10) == pytest.approx(50)


def test_all_days_are_equally_wide():
    axis = DayAxis(first=FIRST, last=FIRST + timedelta(days=3), left=0, right=80)
    assert [axis.at(FIRST + timedelta(days=n)) for n in range(4)] == [10, 30, 50, 70]


def test_single_day_lies_in_the_middle_and_is_named_once():
    axis = DayAxis(first=FIRST, last=FIRST, left=0, right=80)
    assert [(tick.position, tick.label) for tick in axis.ticks] == [(40, "01 Jan")]


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_line_names_stay_apart_and_inside(heights):
    moved = apart(sorted(heights, reverse=True), gap=11, lowest=100, highest=0)
    assert all(below - above >= 11 - 1e-9 for below, above in pairwise(moved))
    assert all(0 <= position <= 100 for position in moved)


def test_line_names_that_are_apart_do_not_move():
    assert apart([90, 50, 10], gap=11, lowest=100, highest=0) == [90, 50, 10]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (5, "5"), (999, "999"), (1_000, "1k"), (12_500, "12.5k"), (2e6, "2M"), (5e9, "5G")],
)
def test_numbers_at_axes_are_short(count, text):
    assert short(count) == text


def test_bars_are_as_high_as_their_events():
    first, second = days(PAIR, 2, mismatches=0)
    high, low = charts.counts([replace(first, events=100), replace(second, events=50)]).bars
    assert (high.top, high.rest) == (FRAME.top, FRAME.bottom - FRAME.top)
    assert low.rest == pytest.approx(high.rest / 2)


def test_mismatches_top_a_bar_without_changing_its_height():
    [bar] = counts(events=100, mismatches=25).bars
    assert bar.top + bar.wrong + bar.rest == pytest.approx(FRAME.bottom)
    assert bar.wrong == pytest.approx((bar.wrong + bar.rest) / 4)


def test_one_mismatch_among_a_million_is_visible():
    [bar] = counts(events=1_000_000, mismatches=1).bars
    assert bar.wrong >= 2


def test_day_without_events_has_no_bar():
    [bar] = counts(events=0, mismatches=0).bars
    assert (bar.wrong, bar.rest) == (0, 0)
    assert bar.title == "2026-01-15: 0 events, 0 mismatches"


def test_bars_stay_inside_and_apart_for_all_shown_days():
    bars = counts(charts.DAYS_SHOWN).bars
    assert len(bars) == charts.DAYS_SHOWN
    assert bars[0].x >= FRAME.left
    assert bars[-1].x + bars[-1].width <= FRAME.right
    assert all(bar.x + bar.width < following.x for bar, following in pairwise(bars))


def test_each_percentile_has_its_line_in_order_of_height():
    lines = delays((10, 20, 30), (20, 40, 80)).lines
    assert tuple(line.name for line in lines) == charts.PERCENTILES
    [p50], [p90], [p99] = (line.runs for line in lines)
    assert all(a.y > b.y > c.y for a, b, c in zip(p50, p90, p99, strict=True))


def test_day_without_delays_breaks_the_lines():
    p50, *_ = delays((1, 2, 3), (1, 2, 3), None, (1, 2, 3), (1, 2, 3)).lines
    assert [len(run) for run in p50.runs] == [2, 2]


def test_without_delays_there_is_no_plot():
    assert delays(None, None) is None
    assert delays((float("nan"),) * 3) is None


def test_zero_and_negative_delays_lie_at_the_bottom():
    p50, p90, _ = delays((-5_000, 0, 10), (-5_000, 0, 10)).lines
    assert {point.y for line in (p50, p90) for point in line.runs[0]} == {FRAME.bottom}


def test_chart_describes_its_values_in_text():
    chart = counts(5)
    assert chart.title == "Events by the day on which they were written"
    assert chart.description == "2026-01-11 to 2026-01-15: 8,836 events, 3 mismatches."
    assert delays((1, 2, 3)).description.startswith("2026-01-01: p50 1 ms, p90 2 ms, p99 3 ms")


def drawn(tag, of_days):
    """Return the attributes of each element of this name on a page with these days."""
    elements = Page(html.page(findings(days=of_days))).elements
    return [attributes for name, attributes in elements if name == tag]


def test_bars_are_drawn_at_their_positions():
    of_days = days(PAIR, 3, events=4, mismatches=1)
    bars = charts.counts(of_days).bars
    rectangles = drawn("rect", of_days)
    assert len(rectangles) == 2 * len(bars)
    for bar, rest, wrong in zip(bars, rectangles[::2], rectangles[1::2], strict=True):
        x, width = f"{bar.x:.5g}", f"{bar.width:.5g}"
        assert rest == {
            "class": "bar",
            "x": x,
            "width": width,
            "y": f"{bar.top + bar.wrong:.5g}",
            "height": f"{bar.rest:.5g}",
        }
        assert wrong == {
            "class": "bar wrong",
            "x": x,
            "width": width,
            "y": f"{bar.top:.5g}",
            "height": f"{bar.wrong:.5g}",
        }
    assert drawn("rect", days(PAIR, 3, events=0, mismatches=0)) == []


def test_lines_join_their_points_and_single_days_are_points():
    first, second, _, last = days(PAIR, 4, effect_ms=None)
    lines = charts.delays(
        [(day.day, day.publish_ms) for day in (first, second, last)], name="delay", title="Delay"
    ).lines
    assert drawn("polyline", (first, second, last)) == [
        {
            "class": f"line {line.name}",
            "points": " ".join(f"{point.x:.5g},{point.y:.5g}" for point in line.runs[0]),
        }
        for line in lines
    ]
    assert drawn("circle", (first, second, last)) == [
        {"class": line.name, "cx": f"{point.x:.5g}", "cy": f"{point.y:.5g}", "r": "2.2"}
        for line in lines
        for point in line.runs[1]
    ]


def test_drawing_is_named_by_its_title_and_description():
    of_days = days(PAIR, 3)
    names = [drawing["aria-labelledby"] for drawing in drawn("svg", of_days)]
    titles, descriptions = (drawn(tag, of_days) for tag in ("title", "desc"))
    identities = [title["id"] for title in titles if "id" in title]
    assert len(names) == 3
    assert names == [
        f"{title} {description['id']}"
        for title, description in zip(identities, descriptions, strict=True)
    ]
