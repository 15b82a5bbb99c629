"""The times that no run has judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import chain, repeat

from shieldtx.domain.states import TxKind
from shieldtx.reconcile import judged_spans
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.judged_spans import JudgedRun, JudgedUntil, judged_until, unjudged_spans
from shieldtx.reconcile.window import Window

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
FORTH = Stream(kind=TxKind.COMMIT, upstream="stock", downstream="orders")
BACK = Stream(kind=TxKind.ROLLBACK, upstream="orders", downstream="stock")
OWN = Stream(kind=TxKind.COMMIT, upstream="orders", downstream="orders")
A_WEEK = Window(horizon=NOON - timedelta(days=7), watermark=NOON)
BOTH = ("orders", "stock")


def days(number):
    return NOON - timedelta(days=number)


def run(services=BOTH, **ages):
    marks = {name: days(age) for name, age in ages.items()}
    return JudgedRun(started_at=NOON, services=frozenset(services), watermarks=marks)


def told(*runs, windows=None):
    until = judged_until(runs, BOTH)
    return unjudged_spans(windows or {FORTH: A_WEEK}, until)


def test_unjudged_time_before_the_horizon_is_reported():
    (span,) = told(run(orders=9, stock=9), run(orders=10, stock=10))
    assert span.startswith(
        "no run has judged the events between orders and stock from 2026-01-06 12:00:00+0000 to "
        "2026-01-08 12:00:00+0000:"
    )


def test_latest_run_decides_in_any_order_of_runs():
    late, early = run(orders=1, stock=1), run(orders=9, stock=9)
    assert told(late, early) == []
    assert told(early, late) == []


def test_stream_was_judged_up_to_the_later_watermark():
    assert told(run(orders=9, stock=6)) == []
    assert told(run(orders=6, stock=9)) == []


def test_stream_was_judged_up_to_the_only_watermark():
    """The service without a watermark has another stream that the run could not judge."""
    three = (*BOTH, "mail")
    assert told(run(three, orders=6), run(orders=9, stock=9)) == []
    assert len(told(run(three, mail=6), run(orders=9, stock=9))) == 1


def test_services_never_judged_together_have_no_problem():
    assert told() == []
    assert told(run(["orders"], orders=9), run(["stock"], stock=9)) == []


def test_run_without_a_service_has_not_judged_its_streams():
    assert len(told(run(["orders"], orders=1), run(orders=9, stock=9))) == 1


def test_window_without_a_horizon_or_judgement_has_no_problem():
    for window in (Window(watermark=NOON), Window(obstacle="blind")):
        assert told(run(orders=9, stock=9), windows={FORTH: window}) == []


def test_both_directions_are_reported_in_one_sentence():
    assert len(told(run(orders=9, stock=9), windows={FORTH: A_WEEK, BACK: A_WEEK})) == 1


def test_stream_of_a_service_to_itself_needs_its_own_watermark():
    windows = {OWN: A_WEEK}
    assert told(run(orders=6), windows=windows) == []
    assert len(told(run(stock=6), run(orders=9), windows=windows)) == 1


def test_runs_are_read_until_all_streams_are_known(monkeypatch):
    monkeypatch.setattr(judged_spans, "ENOUGH", 3)
    blind = repeat(run(), 5)
    seen = chain(blind, [run(orders=9, stock=9)], iter(lambda: 1 / 0, None))
    until = judged_until(seen, BOTH)
    assert until == tuple(
        JudgedUntil(services=pair, until=days(9))
        for pair in (("orders", "orders"), ("orders", "stock"), ("stock", "stock"))
    )
