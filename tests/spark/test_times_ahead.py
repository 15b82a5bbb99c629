"""Tests of rows with times in the future, as from a clock that was ahead and was set right."""

from __future__ import annotations

import pytest
from sqlalchemy import func, update

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import EVERYTHING
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
AHEAD = -30 * DAY
"""The age of a row by a clock that is 30 days ahead."""
CLEAN, NOT_JUDGED, MISMATCHES = RunOutcome.CLEAN, RunOutcome.NOT_JUDGED, RunOutcome.MISMATCHES
GROUPS = (
    ExpectedGroup(name="reserve", topics=(TOPIC,)),
    ExpectedGroup(name="orders", kind=TxKind.ROLLBACK, topics=(TOPIC,)),
)
OF_PAIR = "between orders and group reserve of stock (COMMIT) have times that have not come yet"

both_ways = pytest.mark.parametrize("push_down", [True, False])


def services(orders, stock):
    return orders.database(groups=GROUPS[1:]), stock.database(groups=GROUPS[:1])


def in_order(orders, stock, *, age=DAY):
    event_id = orders.write(age=age)
    return stock.receive(event_id, group="reserve", source="orders", age=age)


@both_ways
def test_rows_ahead_are_reported_until_their_times_are_corrected(nights, orders, stock, push_down):
    in_order(orders, stock, age=3 * DAY)
    assert nights.run(*services(orders, stock), push_down=push_down).outcome is CLEAN
    a_day_passes(orders)
    for _ in range(3):
        orders.write(age=AHEAD)

    for selection in (None, None, EVERYTHING):
        night = nights.run(*services(orders, stock), selection=selection, push_down=push_down)

        assert night.outcome is NOT_JUDGED
        assert night.totals[Verdict.IN_FLIGHT] == 3
        (told,) = night.problems
        assert told.startswith(f"3 rows {OF_PAIR}")

    with orders.engine.begin() as connection:
        outbox = orders.tables.outbox
        earlier = func.now() - func.make_interval(0, 0, 0, 0, 0, 20)
        right = {name: func.least(outbox.c[name], earlier) for name in ("created_at", "settled_at")}
        connection.execute(update(outbox).values(right))
    night = nights.run(*services(orders, stock), push_down=push_down)
    assert (night.outcome, night.problems) == (MISMATCHES, ())
    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 3


@both_ways
@pytest.mark.parametrize("column", ["received_at", "settled_at"])
def test_row_in_an_inbox_alone_is_reported_by_each_of_its_times(
    nights, orders, stock, push_down, column
):
    in_order(orders, stock)
    unknown = orders.write(age=DAY)
    ages = {"age": AHEAD} if column == "received_at" else {"age": DAY, "settled_age": AHEAD}
    stock.receive(unknown, group="reserve", source="orders", **ages)
    with orders.engine.begin() as connection:
        outbox = orders.tables.outbox
        connection.execute(outbox.delete().where(outbox.c.event_id == unknown))

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is NOT_JUDGED
    assert night.problems[0].startswith(f"1 rows {OF_PAIR}")


@both_ways
def test_effect_with_a_rollback_from_ahead_is_reported(nights, orders, stock, push_down):
    """Nothing calls for the rollback. A reason may still be read, so the rollback is not judged."""
    in_order(orders, stock)
    event_id = in_order(orders, stock)
    cause = {"causation_id": event_id, "causation_source": "orders", "kind": TxKind.ROLLBACK}
    back = stock.write(age=AHEAD, settled_age=DAY, **cause)
    orders.receive(back, group="orders", source="stock", age=DAY, compensated_id=event_id, **cause)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is NOT_JUDGED
    assert any(told.startswith(f"1 rows {OF_PAIR}") for told in night.problems)


@both_ways
def test_events_in_order_are_clean_whatever_their_times(nights, orders, stock, push_down):
    for age in (DAY, AHEAD):
        in_order(orders, stock, age=age)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert (night.outcome, night.totals) == (CLEAN, {Verdict.MATCHED: 2})


@both_ways
def test_what_is_due_later_or_in_hand_or_just_written_is_clean(nights, orders, stock, push_down):
    in_order(orders, stock)
    orders.write(OutboxStatus.INIT, age=DAY, due_age=AHEAD, waiting=True)
    lease = {"lease_until": orders.now().replace(year=orders.now().year + 1)}
    orders.write(OutboxStatus.PROCESSING, age=DAY, **lease)
    tried = orders.write(age=DAY)
    inbox = {"group": "reserve", "source": "orders"}
    stock.receive(tried, InboxStatus.PROCESSING, age=DAY, due_age=AHEAD, **inbox)
    # By a clock that is slightly ahead.
    orders.write(age=-5)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert (night.outcome, night.problems) == (CLEAN, ())
    assert night.totals[Verdict.IN_FLIGHT] == 4
