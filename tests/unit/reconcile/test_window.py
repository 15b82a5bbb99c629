"""The times between which rows can be judged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from shieldtx.ports.retention import NOTED_AHEAD
from shieldtx.reconcile.window import Clock, Memory, Window, memories_of, window_of

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=10)


def hours(count):
    return timedelta(hours=count)


def clock(now=NOON, **known):
    return Clock(service="orders", now=now, **known)


def test_watermark_is_the_margin_before_now():
    assert window_of([clock(), clock()], margin=MARGIN) == Window(watermark=NOON - MARGIN)


def test_slower_clock_decides_for_both():
    slow = clock(now=NOON - hours(1))
    assert window_of([clock(), slow], margin=MARGIN).watermark == NOON - hours(1) - MARGIN
    assert window_of([slow, clock()], margin=MARGIN).watermark == NOON - hours(1) - MARGIN


def test_running_transaction_delays_the_watermark_on_any_side():
    busy = clock(oldest_transaction=NOON - hours(3))
    assert window_of([busy, clock()], margin=MARGIN).watermark == NOON - hours(3) - MARGIN
    assert window_of([clock(), busy], margin=MARGIN).watermark == NOON - hours(3) - MARGIN


def test_transaction_longer_than_the_margin_is_reported():
    began = NOON - hours(3)
    assert window_of([clock(oldest_transaction=began)], margin=MARGIN).transaction_since == began
    lately = clock(oldest_transaction=NOON - MARGIN)
    assert window_of([lately], margin=MARGIN).transaction_since is None
    # A slow clock is not a transaction.
    apart = [clock(), clock(now=NOON - hours(1))]
    assert window_of(apart, margin=MARGIN).transaction_since is None


def test_without_purging_there_is_no_horizon():
    assert window_of([clock(), clock()], margin=MARGIN).horizon is None


def test_shorter_retention_decides_the_horizon():
    window = window_of([clock(retention=hours(24)), clock(retention=hours(72))], margin=MARGIN)
    assert window.horizon == NOON - hours(24) + MARGIN


def test_empty_window_judges_nothing_and_has_an_obstacle():
    busy = clock(oldest_transaction=NOON - hours(30), retention=hours(24))
    window = window_of([busy, clock()], margin=MARGIN)
    assert window.watermark is None
    assert "transaction" in window.obstacle


def test_invisible_transactions_leave_no_watermark():
    blind = clock(obstacle="GRANT something")
    assert window_of([clock(), blind], margin=MARGIN) == Window(obstacle="GRANT something")


def test_obstacle_closes_a_window_and_the_first_one_stays():
    window = Window(watermark=NOON)
    assert window.unless("") is window
    assert window.unless("nobody listens") == Window(obstacle="nobody listens")
    assert Window(obstacle="blind").unless("nobody listens").obstacle == "blind"


def test_purge_beyond_the_retention_decides_the_horizon():
    short = clock(retention=hours(72), purged_until=NOON - hours(24))
    assert window_of([clock(), short], margin=MARGIN).horizon == NOON - hours(24) + MARGIN
    long = clock(retention=hours(24), purged_until=NOON - hours(72))
    assert window_of([long, clock()], margin=MARGIN).horizon == NOON - hours(24) + MARGIN
    unbounded = clock(purged_until=NOON - hours(24))
    assert window_of([unbounded], margin=MARGIN).horizon == NOON - hours(24) + MARGIN


@pytest.mark.parametrize(
    ("retention", "purged", "said"),
    [
        (hours(24), None, ""),
        (hours(24), hours(30), ""),
        (hours(24), hours(24) - NOTED_AHEAD, ""),
        (hours(24), hours(23), "keep its rows for 1 day, 0:00:00, and has purged"),
        (None, hours(300), "keep its rows for ever, and has purged"),
        (None, None, ""),
    ],
)
def test_remark_reports_purges_earlier_than_configured(retention, purged, said):
    until = None if purged is None else NOON - purged
    remark = clock(retention=retention, purged_until=until).remark
    assert said in remark
    assert bool(remark) is bool(said)
    if said:
        assert "set `retention` of orders in reconcile.toml" in remark


@pytest.mark.parametrize(
    ("later", "purged", "counts"),
    [
        # The margin allows for this purge, or the purge did not go on.
        (hours(1), None, False),
        (hours(1), hours(24), False),
        (hours(1), hours(23), False),
        # The run took longer than the margin, and the purge kept up with the time.
        (hours(2), hours(22), True),
        # The purge went further than the time.
        (NOTED_AHEAD, hours(20), True),
    ],
)
def test_purge_beyond_the_margin_during_the_run_counts(later, purged, counts):
    before = clock(retention=hours(72), purged_until=NOON - hours(24))
    until = None if purged is None else NOON - purged
    after = before.at_end(now=NOON + later, purged_until=until, margin=hours(1))
    assert (after != before) is counts
    if counts:
        # The purge may have come this far when all rows are read once more.
        assert after.kept_since == until + 2 * later
        assert after.now == NOON


def test_run_longer_than_the_margin_assumes_a_purge():
    """The purge follows the configured retention."""
    before = clock(retention=hours(24))
    after = before.at_end(now=NOON + hours(2), purged_until=None, margin=hours(1))
    assert after.kept_since == NOON - hours(24) + 2 * hours(2)
    assert after.remark == ""
    assert before.at_end(now=NOON + hours(1), purged_until=None, margin=hours(1)) == before


def test_first_purge_counts_even_during_the_run():
    before = clock()
    after = before.at_end(now=NOON, purged_until=NOON - hours(24), margin=hours(1))
    assert after.kept_since == NOON - hours(24)


def memory_of(**known):
    return memories_of({"stock": clock(**known)}, margin=MARGIN).get("stock")


def test_group_remembers_an_event_for_the_retention():
    kept = hours(24)
    assert memory_of(retention=kept) == Memory(period=kept - 2 * MARGIN, since=NOON - kept)
    assert memory_of() is None


def test_purge_beyond_the_retention_shortens_the_memory():
    purged = {"retention": hours(72), "purged_until": NOON - hours(24)}
    assert memory_of(**purged) == memory_of(retention=hours(24))


def test_arrival_within_the_margin_is_in_time_at_any_retention():
    assert memory_of(retention=2 * MARGIN).period == MARGIN
