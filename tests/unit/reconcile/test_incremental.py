"""The watermarks from which the next run may start."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Stream
from shieldtx.reconcile.findings import Bounds
from shieldtx.reconcile.incremental import watermarks_of
from shieldtx.reconcile.judged_spans import JudgedRun, judged_until, unjudged_spans
from shieldtx.reconcile.window import Clock, Window, window_of
from tests.support.sample_findings import BACK, NOON, PAIR, bounds, findings

MARGIN = timedelta(minutes=15)


@pytest.mark.parametrize(
    ("watermark", "stored"),
    [
        (NOON - timedelta(hours=1), NOON - timedelta(hours=1)),
        # The clocks of the databases are ahead of the clock of the run's machine.
        (NOON + timedelta(hours=2), NOON - MARGIN),
    ],
)
def test_watermark_is_not_after_the_clock_of_the_run(watermark, stored):
    found = findings(bounds=(bounds(PAIR, watermark=watermark),), margin=MARGIN)
    assert watermarks_of(found) == {"orders": stored, "stock": stored}


def test_earliest_stream_of_a_service_decides():
    early = NOON - timedelta(hours=3)
    found = findings(bounds=(bounds(PAIR), bounds(BACK, watermark=early)))
    assert watermarks_of(found) == {"orders": early, "stock": early}


def test_services_with_an_unjudged_stream_have_no_watermark():
    blind = replace(bounds(PAIR), downstream="mail", window=Window(obstacle="blind"))
    found = findings(bounds=(blind, bounds(PAIR), bounds(BACK)), margin=MARGIN)
    assert watermarks_of(found) == {"stock": NOON - MARGIN}


def test_idle_service_has_the_watermark_of_its_own_clock():
    hours = {name: NOON + timedelta(hours=n) for name, n in (("mail", -2), ("billing", 2))}
    found = findings(bounds=(bounds(PAIR),), idle=hours, margin=MARGIN)
    both = dict.fromkeys(("orders", "stock", "billing"), NOON - MARGIN)
    assert watermarks_of(found) == {**both, "mail": NOON - timedelta(hours=2)}


def test_time_not_judged_for_one_stream_is_reported_later():
    """For ten nights the clocks of orders and stock are too far apart; that of mail is between."""
    ahead = {"orders": timedelta(0), "mail": timedelta(minutes=10), "stock": timedelta(minutes=20)}
    runs = [judged_run(NOON, {name: timedelta(0) for name in ahead})]
    runs += [judged_run(NOON + timedelta(days=day), ahead) for day in range(1, 11)]
    last = windows(NOON + timedelta(days=11), {name: timedelta(0) for name in ahead})

    (told,) = unjudged_spans(last, judged_until(reversed(runs), ahead))

    assert told.startswith("no run has judged the events between orders and stock from 2026-01-15 ")


def judged_run(now, ahead):
    """Return the watermarks of a run, by clocks that are ahead of its machine's clock."""
    streams = tuple(
        Bounds(kind=s.kind, upstream=s.upstream, downstream=s.downstream, window=window)
        for s, window in windows(now, ahead).items()
    )
    marks = watermarks_of(findings(started_at=now, bounds=streams, margin=MARGIN))
    return JudgedRun(started_at=now, services=frozenset(ahead), watermarks=marks)


def windows(now, ahead):
    """Return the window of each pair of services."""
    clocks = {
        name: Clock(service=name, now=now + by, ahead=by, retention=timedelta(days=7))
        for name, by in ahead.items()
    }
    return {
        Stream(kind=TxKind.COMMIT, upstream=one, downstream=other): window_of(
            [clocks[one], clocks[other]], margin=MARGIN
        )
        for one, other in combinations(ahead, 2)
    }
