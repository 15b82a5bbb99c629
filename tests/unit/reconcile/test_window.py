"""Between which times rows can be judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shieldtx.reconcile.window import Clock, Window, window_of

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=10)


def hours(count):
    return timedelta(hours=count)


def clock(now=NOON, **known):
    return Clock(service="orders", now=now, **known)


def test_the_watermark_is_the_margin_before_now():
    assert window_of([clock(), clock()], margin=MARGIN) == Window(watermark=NOON - MARGIN)


def test_the_slower_clock_decides_for_both():
    slow = clock(now=NOON - hours(1))
    assert window_of([clock(), slow], margin=MARGIN).watermark == NOON - hours(1) - MARGIN
    assert window_of([slow, clock()], margin=MARGIN).watermark == NOON - hours(1) - MARGIN


def test_a_transaction_that_still_runs_holds_the_watermark_back_on_either_side():
    busy = clock(oldest_transaction=NOON - hours(3))
    assert window_of([busy, clock()], margin=MARGIN).watermark == NOON - hours(3) - MARGIN
    assert window_of([clock(), busy], margin=MARGIN).watermark == NOON - hours(3) - MARGIN


def test_without_purging_there_is_no_horizon():
    assert window_of([clock(), clock()], margin=MARGIN).horizon is None


def test_the_shorter_retention_decides_how_far_back_rows_can_be_missed():
    window = window_of([clock(retention=hours(24)), clock(retention=hours(72))], margin=MARGIN)
    assert window.horizon == NOON - hours(24) + MARGIN


def test_a_window_without_room_judges_nothing_and_says_why():
    busy = clock(oldest_transaction=NOON - hours(30), retention=hours(24))
    window = window_of([busy, clock()], margin=MARGIN)
    assert window.watermark is None
    assert "transaction" in window.obstacle


def test_transactions_that_cannot_be_seen_leave_no_watermark():
    blind = clock(obstacle="GRANT something")
    assert window_of([clock(), blind], margin=MARGIN) == Window(obstacle="GRANT something")


def test_an_obstacle_closes_a_window_and_the_first_one_stays():
    window = Window(watermark=NOON)
    assert window.unless("") is window
    assert window.unless("nobody listens") == Window(obstacle="nobody listens")
    assert Window(obstacle="blind").unless("nobody listens").obstacle == "blind"
