"""What of the time that a run was asked for it cannot judge."""

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
    """Ask for a window from so many days ago to so many days ago."""
    since, until = (
        days if days is None else NOON - timedelta(days=days) for days in (since, until)
    )
    asked = Selection(written_since=since, written_until=until)
    return unjudged_of(asked, {FORTH: window, BACK: window}, dict(alone))


@pytest.mark.parametrize(
    ("since", "until"),
    # Without an end, or a beginning, a run judges what there is to judge.
    [(5, 3), (5, 0), (7, 1), (5, None), (7, None), (0.1, None), (None, 3), (None, 6.9), (None, 0)],
)
def test_of_a_time_in_which_all_can_be_judged_nothing_is_told(since, until):
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
def test_a_time_of_which_rows_may_have_been_purged_is_told_once(since, until, purged):
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
def test_a_time_of_which_events_are_in_flight_or_still_to_come_is_told_once(since, until, to_come):
    (problem,) = told(since, until)

    assert problem.startswith(f"{WRITTEN} {to_come} {TO_COME}")


def test_of_a_long_time_both_ends_are_told():
    assert [PURGED in problem for problem in told(9, -1)] == [True, False]


def test_where_nothing_is_purged_a_time_in_the_past_is_judged_by_what_is_there():
    for_ever = Window(watermark=NOON)

    assert told(900, 800, for_ever) == told(900, None, for_ever) == told(None, 800, for_ever) == []


def test_where_nothing_can_be_judged_the_obstacle_of_it_says_so():
    assert told(9, -1, Window(obstacle="its clock is wrong")) == []


def test_a_service_that_is_compared_with_topics_alone_is_told_of_by_itself():
    a_day = Window(horizon=NOON - timedelta(days=1), watermark=NOON)

    (problem,) = told(4, 2, alone={"mail": a_day})

    assert problem.startswith(
        "events of mail that were written from 2026-01-11 12:00:00+0000 to "
        f"2026-01-13 12:00:00+0000 {PURGED}"
    )
