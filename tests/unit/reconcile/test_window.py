"""Between which times rows can be judged."""

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


def test_a_transaction_that_runs_for_longer_than_the_margin_is_told():
    began = NOON - hours(3)
    assert window_of([clock(oldest_transaction=began)], margin=MARGIN).transaction_since == began
    lately = clock(oldest_transaction=NOON - MARGIN)
    assert window_of([lately], margin=MARGIN).transaction_since is None
    # A slow clock is not a transaction.
    apart = [clock(), clock(now=NOON - hours(1))]
    assert window_of(apart, margin=MARGIN).transaction_since is None


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


def test_a_purge_that_went_further_than_the_retention_says_decides():
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
def test_a_remark_says_that_rows_are_purged_earlier_than_configured(retention, purged, said):
    until = None if purged is None else NOON - purged
    remark = clock(retention=retention, purged_until=until).remark
    assert said in remark
    assert bool(remark) is bool(said)
    if said:
        assert "set `retention` of orders in reconcile.toml" in remark


@pytest.mark.parametrize(
    ("later", "purged", "counts"),
    [
        # The margin allows for it, or the purge did not go on.
        (hours(1), None, False),
        (hours(1), hours(24), False),
        (hours(1), hours(23), False),
        # The run took longer than the margin, and the purge kept up with the time.
        (hours(2), hours(22), True),
        # It went further than the time.
        (NOTED_AHEAD, hours(20), True),
    ],
)
def test_a_purge_that_went_further_than_the_margin_while_rows_were_read_counts(
    later, purged, counts
):
    before = clock(retention=hours(72), purged_until=NOON - hours(24))
    until = None if purged is None else NOON - purged
    after = before.at_end(now=NOON + later, purged_until=until, margin=hours(1))
    assert (after != before) is counts
    if counts:
        # By the time that all is read once more, the purge may be there.
        assert after.kept_since == until + 2 * later
        assert after.now == NOON


def test_a_run_that_takes_longer_than_the_margin_sees_rows_go_by_the_configured_retention():
    before = clock(retention=hours(24))
    after = before.at_end(now=NOON + hours(2), purged_until=None, margin=hours(1))
    assert after.kept_since == NOON - hours(24) + 2 * hours(2)
    assert after.remark == ""
    assert before.at_end(now=NOON + hours(1), purged_until=None, margin=hours(1)) == before


def test_the_first_purge_of_all_counts_though_it_took_place_while_rows_were_read():
    before = clock()
    after = before.at_end(now=NOON, purged_until=NOON - hours(24), margin=hours(1))
    assert after.kept_since == NOON - hours(24)


def memory_of(**known):
    return memories_of({"stock": clock(**known)}, margin=MARGIN).get("stock")


def test_a_group_knows_an_event_for_as_long_as_its_service_keeps_rows():
    kept = hours(24)
    assert memory_of(retention=kept) == Memory(period=kept - 2 * MARGIN, since=NOON - kept)
    assert memory_of() is None


def test_a_purge_that_went_further_than_the_retention_says_shortens_the_memory():
    purged = {"retention": hours(72), "purged_until": NOON - hours(24)}
    assert memory_of(**purged) == memory_of(retention=hours(24))


def test_what_came_within_the_margin_came_in_time_however_short_the_retention_is():
    assert memory_of(retention=2 * MARGIN).period == MARGIN
