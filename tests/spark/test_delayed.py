"""Tests of delayed events, which are written long before a group receives them.

Their age counts from the time at which they were sent.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

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


def arrived(orders, stock, status=InboxStatus.PROCESSED, *, event_id=None):
    """Write an event 30 days ago that was due yesterday and that a group received then."""
    times = {"age": 30 * DAY, "settled_age": DAY}
    event = event_id or orders.write(**times)
    received_at = stock.now() - timedelta(days=1)
    stock.receive(event, status, group="reserve", source="orders", **times, received_at=received_at)
    return event


@BOTH_WAYS
def test_the_lost_rollback_of_a_delayed_event_is_missed(nights, orders, stock, push_down):
    in_order(orders, stock)
    event = arrived(orders, stock, InboxStatus.MAX_RECONSUMED)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.totals == {Verdict.MATCHED: 1, Verdict.NEITHER_EFFECT_NOR_COMPENSATION: 1}
    assert [row.event_id for row in night.first_rows] == [str(event)]


@BOTH_WAYS
def test_delayed_event_with_an_uncalled_rollback_is_a_mismatch(nights, orders, stock, push_down):
    event = arrived(orders, stock)
    of = {"kind": TxKind.ROLLBACK, "age": DAY - 10, "causation_id": event}
    of["causation_source"] = "orders"
    back = stock.write(**of)
    orders.receive(back, group="orders", source="stock", compensated_id=event, **of)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.totals == {Verdict.MATCHED: 1, Verdict.EFFECT_DESPITE_ROLLBACK: 1}


@BOTH_WAYS
def test_delayed_event_without_an_outbox_row_is_reported(nights, orders, stock, push_down):
    """Nothing shows whether the outbox row was purged or never existed."""
    in_order(orders, stock)
    written = first_id_of((orders.now() - timedelta(days=30)).timestamp())
    event = arrived(orders, stock, event_id=written)
    # An earlier run has seen both rows of an event that was received in time.
    late = {"age": 8 * DAY, "settled_age": 5 * DAY}
    at = stock.now() - timedelta(days=5)
    stock.receive(uuid4(), group="reserve", source="orders", **late, received_at=at)

    night = nights.run(*services(orders, stock), push_down=push_down)

    assert night.totals == {Verdict.MATCHED: 1, Verdict.TOO_OLD: 2}
    assert night.outcome is RunOutcome.NOT_JUDGED
    (told,) = night.problems
    assert told.startswith("1 events came to group reserve of stock (COMMIT) when they were older")
    rows = pq.read_table(OutputFolder(path=nights.folder).rows).to_pylist()
    assert [row["event_id"] for row in rows if row["ambiguous"]] == [str(event)]
