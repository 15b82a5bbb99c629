"""The plots: where things lie, and what they say where nothing is to be seen."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx.reconcile.report import charts
from shieldtx.reconcile.report.chart_axes import CountAxis, DayAxis, DelayAxis, apart, short
from shieldtx.reconcile.report.daily import daily
from tests.support.html_reader import Page
from tests.support.sample_findings import BACK, PAIR, a_crowd, days, findings

FIRST = date(2026, 1, 1)


def rectangles(drawing, class_):
    """The x, y, width, height of all rectangles of a class."""
    number = '"([^"]*)"'
    found = re.findall(
        f'<rect x={number} y={number} width={number} height={number} class="{class_}">', drawing
    )
    return [tuple(map(float, numbers)) for numbers in found]


def lines(drawing, percentile):
    """The points of each line of a percentile."""
    found = re.findall(rf'<polyline points="([^"]*)" class="line {percentile}">', drawing)
    return [[tuple(map(float, p.split(","))) for p in points.split()] for points in found]


def delays(*of_days, title="Delay"):
    each = [(FIRST + timedelta(days=n), delay) for n, delay in enumerate(of_days)]
    return charts.delays(each, title=title, identity="d")


@given(st.integers(0, 10**12))
def test_a_count_lies_inside_its_axis_and_the_axis_ends_at_a_round_number(largest):
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
def test_a_delay_lies_inside_its_axis_whatever_it_is(one, other):
    axis = DelayAxis(shortest=min(one, other), longest=max(one, other), bottom=100, top=0)
    assert len(axis.rungs) >= 2
    assert 0 <= axis.at(max(one, other)) <= axis.at(min(one, other)) <= 100
    assert axis.ticks[0].position == 100


def test_delays_lie_by_their_powers():
    axis = DelayAxis(shortest=1, longest=100, bottom=100, top=0)
    assert [tick.label for tick in axis.ticks] == ["1 ms", "10 ms", "100 ms"]
    assert axis.at(10) == pytest.approx(50)


def test_all_days_are_equally_wide():
    axis = DayAxis(first=FIRST, last=FIRST + timedelta(days=3), left=0, right=80)
    assert [axis.at(FIRST + timedelta(days=n)) for n in range(4)] == [10, 30, 50, 70]


def test_one_day_lies_in_the_middle_and_is_named_once():
    axis = DayAxis(first=FIRST, last=FIRST, left=0, right=80)
    assert [(tick.position, tick.label) for tick in axis.ticks] == [(40, "01 Jan")]


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3))
def test_names_of_lines_keep_apart_and_inside(heights):
    moved = apart(sorted(heights, reverse=True), gap=11, lowest=100, highest=0)
    assert all(below - above >= 11 - 1e-9 for below, above in pairwise(moved))
    assert all(0 <= position <= 100 for position in moved)


def test_names_of_lines_that_are_apart_stay_where_they_are():
    assert apart([90, 50, 10], gap=11, lowest=100, highest=0) == [90, 50, 10]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (5, "5"), (999, "999"), (1_000, "1k"), (12_500, "12.5k"), (2e6, "2M"), (5e9, "5G")],
)
def test_numbers_at_axes_are_short(count, text):
    assert short(count) == text


def test_bars_are_as_high_as_their_events():
    two = (replace(days(PAIR, 1)[0], events=100), replace(days(PAIR, 1)[0], events=50))
    two = (replace(two[0], day=FIRST), replace(two[1], day=FIRST + timedelta(days=1)))
    (_, y, _, high), (_, _, _, low) = rectangles(charts.counts(two, identity="c"), "bar")
    assert (y, high) == (charts.TOP, charts.BOTTOM - charts.TOP)
    assert low == pytest.approx(high / 2)


def test_mismatches_stand_on_top_of_the_rest_and_the_bar_keeps_its_height():
    day = replace(days(PAIR, 1)[0], events=100, mismatches=25)
    drawing = charts.counts([day], identity="c")
    (x, rest_y, width, rest), (wrong_x, wrong_y, wrong_width, wrong) = (
        *rectangles(drawing, "bar"),
        *rectangles(drawing, "bar wrong"),
    )
    assert (wrong_x, wrong_width) == (x, width)
    assert wrong_y + wrong == pytest.approx(rest_y)
    assert wrong == pytest.approx((wrong + rest) / 4)


def test_one_mismatch_among_a_million_can_be_seen():
    day = replace(days(PAIR, 1)[0], events=1_000_000, mismatches=1)
    ((_, _, _, height),) = rectangles(charts.counts([day], identity="c"), "bar wrong")
    assert height >= 2


def test_a_day_without_events_has_no_bar():
    none = replace(days(PAIR, 1)[0], events=0, mismatches=0)
    drawing = charts.counts([none], identity="c")
    assert "<rect" not in drawing
    assert "0 events, 0 mismatches" in drawing


def test_bars_stay_inside_and_apart_for_as_many_days_as_are_shown():
    drawing = charts.counts(days(PAIR, charts.DAYS_SHOWN), identity="c")
    bars = sorted(rectangles(drawing, "bar"))
    assert len(bars) == charts.DAYS_SHOWN
    assert bars[0][0] >= charts.LEFT
    assert bars[-1][0] + bars[-1][2] <= charts.RIGHT
    assert all(x + width < following for (x, _, width, _), (following, *_) in pairwise(bars))


def test_each_percentile_has_its_line_and_a_higher_one_lies_higher():
    drawing = delays((10, 20, 30), (20, 40, 80))
    [p50], [p90], [p99] = (lines(drawing, name) for name in charts.PERCENTILES)
    assert all(a[1] > b[1] > c[1] for a, b, c in zip(p50, p90, p99, strict=True))
    assert all(name in Page(drawing).text for name in charts.PERCENTILES)


def test_a_day_without_delays_breaks_the_lines():
    drawing = delays((1, 2, 3), (1, 2, 3), None, (1, 2, 3), (1, 2, 3))
    assert [len(line) for line in lines(drawing, "p50")] == [2, 2]


def test_a_lone_day_is_a_point():
    assert delays((1, 2, 3)).count("<circle") == 3
    assert delays((1, 2, 3), None, (1, 2, 3), (1, 2, 3)).count("<circle") == 3


def test_without_delays_there_is_no_plot():
    assert delays(None, None) is None
    assert delays((float("nan"),) * 3) is None


def test_delays_of_nothing_and_below_nothing_lie_at_the_foot():
    drawing = delays((-5_000, 0, 10), (-5_000, 0, 10))
    [p50], [p90] = lines(drawing, "p50"), lines(drawing, "p90")
    assert {y for _, y in (*p50, *p90)} == {charts.BOTTOM}


def test_a_plot_says_in_words_what_it_shows():
    page = Page(charts.counts(days(PAIR, 5), identity="c"))
    title, description, *_ = page.titles
    assert title == "Events by the day on which they were written"
    assert description.startswith("2026-01-11 to 2026-01-15: ")
    assert {"c-title", "c-desc"} <= set(page.identities)
    assert "2026-01-01: p50 1 ms, p90 2 ms, p99 3 ms" in Page(delays((1, 2, 3))).titles[1]


def test_each_pair_has_its_plots_and_the_numbers_of_them():
    page = Page(daily(findings(days=(*days(PAIR, 2), *days(BACK, 1, effect_ms=None)))))
    of_pair, of_back = page.tables
    assert [row[:3] for row in of_pair[1:]] == [
        ["2026-01-14", "1,959", "0"],
        ["2026-01-15", "1,411", "0"],
    ]
    assert of_back[1][-1] == "\N{EN DASH}"
    assert len(page.identities) == len(set(page.identities)) == 2 * (3 + 2)


def test_days_are_in_order_whatever_order_they_come_in():
    page = Page(daily(findings(days=tuple(reversed(days(PAIR, 3))))))
    assert [row[0] for row in page.tables[0][1:]] == ["2026-01-13", "2026-01-14", "2026-01-15"]


def test_of_many_days_the_latest_are_shown_and_mismatches_of_the_others_are_told():
    page = Page(daily(a_crowd()))
    assert len(page.tables[0]) == 1 + charts.DAYS_SHOWN
    earlier = days(PAIR, 400)[: -charts.DAYS_SHOWN]
    wrong = sum(day.mismatches for day in earlier)
    assert f"308 earlier days not shown, with {wrong} mismatches." in page.text


def test_without_days_that_is_said():
    assert "There are no days to show." in daily(findings())
