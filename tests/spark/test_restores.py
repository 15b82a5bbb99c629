"""Tests of a database restored from an old backup: no side has the lost rows any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest
from sqlalchemy import delete

from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.database_history import SqlDatabaseHistory
from tests.spark.nights import mode, set_back
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)
RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))


def sent(orders, stock, *, age):
    event = orders.write(age=age)
    stock.receive(event, group="reserve", source="orders", age=age)
    return event


def gone(service, table, *events):
    with service.engine.begin() as connection:
        of_it = service.tables.outbox if table == "outbox" else service.tables.inbox
        connection.execute(delete(of_it).where(of_it.c.event_id.in_(events)))


@pytest.fixture
def a_week_later(nights, orders, stock):
    """Make a clean run six days ago, with events of over eight and of under seven days ago."""
    of = (
        orders.database(retention=A_WEEK),
        stock.database(retention=A_WEEK, groups=(RESERVE,)),
    )
    rows_of = 8.5 * DAY, 8 * DAY, 6.8 * DAY, 6.5 * DAY
    events = [sent(orders, stock, age=age) for age in rows_of]
    assert nights.run(*of).outcome is RunOutcome.CLEAN
    # The rows already have times of then.
    set_back(orders, timedelta(days=6))
    gone(orders, "outbox", *events[:2])
    sent(orders, stock, age=60)
    return of, events


def test_loss_by_an_old_backup_is_reported_once(nights, a_week_later, stock):
    of, events = a_week_later
    # The backup is older than all of these events.
    gone(stock, "inbox", *events)

    night = nights.run(*of)

    assert (mode(night), night.outcome) == (Mode.FULL, RunOutcome.MISMATCHES)
    assert night.totals == {Verdict.MATCHED: 1, Verdict.MISSING_DOWNSTREAM: 2}
    (told,) = night.problems
    assert told.startswith("no run has judged the events between orders and stock to ")
    assert "the database of stock was restored from an earlier copy" in told
    for event in events[2:]:
        stock.receive(event, group="reserve", source="orders", age=30)
    again = nights.run(*of)
    assert (again.outcome, again.problems) == (RunOutcome.CLEAN, ())


def test_a_run_of_the_restored_service_alone_does_not_hide_it(nights, a_week_later, stock):
    of, events = a_week_later
    gone(stock, "inbox", *events)
    for event in events[2:]:
        stock.receive(event, group="reserve", source="orders", age=30)
    nights.run(of[1], scope="stock")

    (told,) = nights.run(*of).problems

    assert "the database of stock was restored from an earlier copy" in told


def test_last_settlement_in_the_copy_dates_the_gap(nights, a_week_later, stock):
    of, events = a_week_later
    gone(stock, "inbox", *events[1:])

    (told,) = nights.run(*of).problems

    assert told.startswith("no run has judged the events between orders and stock from ")


def test_backup_younger_than_the_retention_is_not_reported(nights, a_week_later, stock):
    of, events = a_week_later
    gone(stock, "inbox", events[-1])

    night = nights.run(*of)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1
    assert night.problems == ()


def test_promoted_replica_is_not_reported(nights, a_week_later):
    of, _ = a_week_later
    now = SqlDatabaseHistory.now
    with patch.object(
        SqlDatabaseHistory, "now", lambda asked: replace(now(asked), timeline="00000002")
    ):
        night = nights.run(*of)

    assert (mode(night), night.outcome, night.problems) == (Mode.FULL, RunOutcome.CLEAN, ())
