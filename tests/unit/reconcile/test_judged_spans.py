"""Which times no run has judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.judged_spans import unjudged_spans
from shieldtx.reconcile.window import Window

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
FORTH = Stream(kind=TxKind.COMMIT, upstream="orders", downstream="stock")
BACK = Stream(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders")
A_WEEK = Window(horizon=NOON - timedelta(days=7), watermark=NOON)


def days(number):
    return NOON - timedelta(days=number)


def test_what_no_run_has_judged_before_the_horizon_is_told():
    earlier = [{"orders": days(9), "stock": days(9)}, {"orders": days(10), "stock": days(10)}]
    (told,) = unjudged_spans({FORTH: A_WEEK}, earlier)
    assert told.startswith(
        "no run has judged the events between orders and stock from 2026-01-06 12:00:00+0000 to "
        "2026-01-08 12:00:00+0000:"
    )


def test_the_latest_run_decides_whatever_its_order():
    late, early = {"orders": days(1), "stock": days(1)}, {"orders": days(9), "stock": days(9)}
    assert unjudged_spans({FORTH: A_WEEK}, [late, early]) == []
    assert unjudged_spans({FORTH: A_WEEK}, [early, late]) == []


def test_a_stream_was_judged_as_far_as_the_better_one_of_its_services():
    assert unjudged_spans({FORTH: A_WEEK}, [{"orders": days(9), "stock": days(6)}]) == []
    assert unjudged_spans({FORTH: A_WEEK}, [{"orders": days(6), "stock": days(9)}]) == []


def test_of_services_that_no_run_has_judged_together_nothing_is_known():
    assert unjudged_spans({FORTH: A_WEEK}, []) == []
    assert unjudged_spans({FORTH: A_WEEK}, [{"orders": days(9)}, {"stock": days(9)}]) == []


def test_where_nothing_is_purged_or_judged_nothing_is_told():
    earlier = [{"orders": days(9), "stock": days(9)}]
    assert unjudged_spans({FORTH: Window(watermark=NOON)}, earlier) == []
    assert unjudged_spans({FORTH: Window(obstacle="blind")}, earlier) == []


def test_both_directions_are_told_once():
    earlier = [{"orders": days(9), "stock": days(9)}]
    assert len(unjudged_spans({FORTH: A_WEEK, BACK: A_WEEK}, earlier)) == 2
