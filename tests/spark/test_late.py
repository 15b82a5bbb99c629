"""Tests of rows that settled long after they arrived: replayed, or given up in the end."""

from __future__ import annotations

from datetime import timedelta

import pyarrow.parquet as pq
import pytest

from shieldtx.domain.events import first_id_of
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.verdicts import Verdict

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)
BOTH_WAYS = pytest.mark.parametrize("push_down", [True, False])


def services(orders, stock):
    return orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)


def in_order(orders, stock):
    event = orders.write(age=DAY)
    stock.receive(event, group="reserve", source="orders", age=DAY)
    returned(orders, stock, age=2 * DAY)


def returned(orders, stock, *, age, settled_age=None, is_compensated=True, dead=False):
    """Let a group give an event up, whose rollback is settled in the end."""
    event = first_id_of((orders.now() - timedelta(minutes=age)).timestamp())
    orders.write(event_id=event, age=age)
    given_up = {"group": "reserve", "source": "orders", "age": age}
    stock.receive(event, InboxStatus.MAX_RECONSUMED, **given_up)
    of = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders"}
    settled_age = age if settled_age is None else settled_age
    rollback = stock.write(age=age, settled_age=age if dead else settled_age, **of)
    orders.receive(
        rollback,
        group="orders",
        source="stock",
        age=age,
        settled_age=settled_age,
        received_at=orders.now() - timedelta(minutes=age if dead else settled_age),
        compensated_id=event if is_compensated else None,
        **of,
    )
    return rollback


@BOTH_WAYS
@pytest.mark.parametrize("dead", [True, False])
def test_late_rollback_without_compensation_prevents_clean_runs(
    nights, orders, stock, push_down, dead
):
    in_order(orders, stock)
    late = {"age": 10 * DAY, "settled_age": DAY, "dead": dead}
    rollback = returned(orders, stock, is_compensated=False, **late)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is RunOutcome.NOT_JUDGED
    (told,) = night.problems
    assert told.startswith("1 rollbacks of stock were older than the retention when group orders ")
    rows = pq.read_table(OutputFolder(path=nights.folder).rows).to_pylist()
    assert [row["event_id"] for row in rows if row["ambiguous"]] == [str(rollback)]


@BOTH_WAYS
def test_a_late_rollback_that_compensated_its_event_is_in_order(nights, orders, stock, push_down):
    in_order(orders, stock)
    returned(orders, stock, age=10 * DAY, settled_age=DAY)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.outcome is RunOutcome.CLEAN
    assert night.totals[Verdict.TOO_OLD] == 0


@BOTH_WAYS
def test_lost_rollback_of_an_event_purged_upstream_is_missed(nights, orders, stock, push_down):
    """The group tried the event for nine days, and gave it up yesterday."""
    in_order(orders, stock)
    event = first_id_of((orders.now() - timedelta(days=10)).timestamp())
    late = {"age": 10 * DAY, "settled_age": DAY}
    stock.receive(event, InboxStatus.MAX_RECONSUMED, group="reserve", source="orders", **late)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.totals[Verdict.NEITHER_EFFECT_NOR_COMPENSATION] == 1
    assert [row.event_id for row in night.first_rows] == [str(event)]
