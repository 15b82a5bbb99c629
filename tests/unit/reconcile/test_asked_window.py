"""The part of the requested time that a run cannot judge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.asked_window import unjudged_of
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.window import Window

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
FORTH = Stream(kind=TxKind.COMMIT, upstream="stock", downstream="orders")
BACK = Stream(kind=TxKind.ROLLBACK, upstream="orders", downstream="stock")
A_WEEK = Window(horizon=NOON - timedelta(days=7), watermark=NOON)
WRITTEN = "events between orders and stock that were written"
PURGED, TO_COME = "could not be judged: their rows", "could not be judged yet: they are in flight"


def told(since=None, until=None, window=A_WEEK, alone=()):
    """Request a window between two numbers of days ago; return the problems."""
    since, until = (
        days if days is None else NOON - timedelta(days=days) for days in (since, until)
    )
    asked = Selection(written_since=since, written_until=until)
    return unjudged_of(asked, {FORTH: window, BACK: window}, dict(alone))


@pytest.mark.parametrize(
    ("since", "until"),
    # Without an end, or a beginning, a run judges every row that it can.
    [(5, 3), (5, 0), (7, 1), (5, None), (7, None), (0.1, None), (None, 3), (None, 6.9), (None, 0)],
)
def test_time_that_can_be_judged_has_no_problem(since, until):
    assert told(since, until) == []


@pytest.mark.parametrize(
    ("since", "until", "purged"),
    [
        (9, 8, "from 2026-01-06 12:00:00+0000 to 2026-01-07 12:00:00+0000"),
        (9, 3, "from 2026-01-06 12:00:00+0000 to 2026-01-08 12:00:00+0000"),
        (9, None, "from 2026-01-06 12:00:00+0000 to 2026-01-08 12:00:00+0000"),
        (None, 365, "before 2025-01-15 12:00:00+0000"),
        (None, 7, "before 2026-01-08 12:00:00+0000"),
    ],
)
def test_time_of_purged_rows_is_one_problem(since, until, purged):
    (problem,) = told(since, until)

    assert problem.startswith(f"{WRITTEN} {purged} {PURGED}")


@pytest.mark.parametrize(
    ("since", "until", "to_come"),
    [
        (3, -1, "from 2026-01-15 12:00:00+0000 to 2026-01-16 12:00:00+0000"),
        (None, -1, "from 2026-01-15 12:00:00+0000 to 2026-01-16 12:00:00+0000"),
        (-1, -2, "from 2026-01-16 12:00:00+0000 to 2026-01-17 12:00:00+0000"),
        (0, None, "from 2026-01-15 12:00:00+0000 on"),
        (-365, None, "from 2027-01-15 12:00:00+0000 on"),
    ],
)
def test_time_of_events_in_flight_or_to_come_is_one_problem(since, until, to_come):
    (problem,) = told(since, until)

    assert problem.startswith(f"{WRITTEN} {to_come} {TO_COME}")


def test_long_time_has_a_problem_at_both_ends():
    assert [PURGED in problem for problem in told(9, -1)] == [True, False]


def test_past_time_without_purging_has_no_problem():
    for_ever = Window(watermark=NOON)

    assert told(900, 800, for_ever) == told(900, None, for_ever) == told(None, 800, for_ever) == []


def test_window_with_an_obstacle_has_no_further_problem():
    assert told(9, -1, Window(obstacle="its clock is wrong")) == []


def test_service_compared_with_topics_alone_has_its_problem():
    a_day = Window(horizon=NOON - timedelta(days=1), watermark=NOON)

    (problem,) = told(4, 2, alone={"mail": a_day})

    assert problem.startswith(
        "events of mail that were written from 2026-01-11 12:00:00+0000 to "
        f"2026-01-13 12:00:00+0000 {PURGED}"
    )
