"""Tests of events that arrived after their group may have purged the row of the first arrival."""

from __future__ import annotations

from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.verdicts import Verdict

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)
BOTH_WAYS = pytest.mark.parametrize("push_down", [True, False])


def services(orders, stock, *, outbox=A_WEEK, inbox=A_WEEK):
    return orders.database(retention=outbox), stock.database(retention=inbox)


def in_order(orders, stock):
    for _ in range(3):
        event = orders.write(age=DAY)
        stock.receive(event, group="reserve", source="orders", age=DAY)


def came(orders, stock, status=InboxStatus.PROCESSED, *, age, written_age, **columns):
    """Write an event, perhaps settled later, that the group has received at an age."""
    event = orders.write(age=written_age, **columns)
    written = orders.now() - timedelta(minutes=written_age)
    of_group = {"group": "reserve", "source": "orders", "age": age, "event_time": written}
    return stock.receive(event, status, **of_group)


def ambiguous(nights):
    rows = pq.read_table(OutputFolder(path=nights.folder).rows).to_pylist()
    return [(row["event_id"], row["verdict"]) for row in rows if row["ambiguous"]]


@BOTH_WAYS
def test_event_replayed_after_the_retention_may_be_applied_twice(nights, orders, stock, push_down):
    """The first record was not confirmed. A group that received it has purged its row since."""
    in_order(orders, stock)
    late = {"written_age": 20 * DAY, "settled_age": 120, "unconfirmed": True}
    event = came(orders, stock, age=119, **late)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is RunOutcome.NOT_JUDGED
    assert night.totals == {Verdict.MATCHED: 4}
    (told,) = night.problems
    assert told.startswith("1 events of orders came to group reserve of stock so long after ")
    assert ambiguous(nights) == [(str(event), "MATCHED")]


@BOTH_WAYS
def test_events_reread_after_the_retention_may_be_applied_twice(nights, orders, stock, push_down):
    in_order(orders, stock)
    for _ in range(3):
        came(orders, stock, age=100, written_age=3 * DAY)

    night = nights.run(*services(orders, stock, inbox=timedelta(days=1)), push_down=push_down)

    assert night.outcome is RunOutcome.NOT_JUDGED
    (told,) = night.problems
    assert told.startswith("3 events of orders came to group reserve of stock so long after ")
    assert len(ambiguous(nights)) == 3


@BOTH_WAYS
def test_rollback_resent_after_retention_may_be_undone_twice(nights, orders, stock, push_down):
    in_order(orders, stock)
    event = came(orders, stock, InboxStatus.MAX_RECONSUMED, age=2 * DAY, written_age=2 * DAY)
    of = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders"}
    rollback = stock.write(age=9 * DAY, settled_age=DAY, unconfirmed=True, **of)
    of |= {"group": "orders", "source": "stock", "age": DAY, "compensated_id": event}
    orders.receive(rollback, **of)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is RunOutcome.NOT_JUDGED
    (told,) = night.problems
    assert told.startswith("1 rollbacks of stock came to group orders of orders so long after ")
    assert ambiguous(nights) == [(str(rollback), "MATCHED")]


@BOTH_WAYS
@pytest.mark.parametrize(
    "late",
    [
        # Delayed, or FAILED for a long time, and not sent before.
        {"written_age": 30 * DAY, "settled_age": DAY},
        # Delayed, and the first record was not confirmed.
        {
            "written_age": 30 * DAY,
            "due_age": DAY,
            "settled_age": DAY,
            "unconfirmed": True,
            "waiting": True,
        },
        # Replayed, or received, while the group still had its rows.
        {"written_age": 7 * DAY, "settled_age": DAY, "unconfirmed": True},
        {"written_age": 7 * DAY},
    ],
)
def test_event_that_arrived_within_the_retention_is_in_order(
    nights, orders, stock, late, push_down
):
    in_order(orders, stock)
    came(orders, stock, age=DAY, **late)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert (night.outcome, night.problems) == (RunOutcome.CLEAN, ())
    assert night.totals == {Verdict.MATCHED: 4}


@BOTH_WAYS
def test_group_with_a_longer_retention_recognizes_its_events(nights, orders, stock, push_down):
    in_order(orders, stock)
    came(orders, stock, age=60, written_age=5 * DAY, settled_age=61, unconfirmed=True)

    of = services(orders, stock, outbox=timedelta(days=2), inbox=A_WEEK)
    night = nights.run(*of, push_down=push_down)

    assert (night.outcome, night.problems) == (RunOutcome.CLEAN, ())
