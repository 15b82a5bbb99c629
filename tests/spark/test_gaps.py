"""Tests of times and pairs that no run could judge.

Such a run is not clean, and the next run begins later.
"""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from sqlalchemy import delete, text

from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.request import EVERYTHING, Selection
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes, mode, set_back
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)


def received(orders, stock, *ages):
    for age in ages:
        event = orders.write(age=age)
        stock.receive(event, group="reserve", source="orders", age=age)


def test_time_that_no_run_has_judged_is_reported_once(nights, orders, stock):
    services = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)
    received(orders, stock, 9.5 * DAY, 2 * DAY)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    a_day_passes(orders, 9)
    orders.write(age=8 * DAY)

    night = nights.run(*services)

    assert (mode(night), night.outcome) == (Mode.INCREMENTAL, RunOutcome.NOT_JUDGED)
    assert night.totals[Verdict.TOO_OLD] == 1
    (told,) = night.problems
    assert told.startswith("no run has judged the events between orders and stock from ")
    again = nights.run(*services)
    assert (mode(again), again.outcome) == (Mode.INCREMENTAL, RunOutcome.CLEAN)


def test_full_run_reports_the_unjudged_time_too(nights, orders, stock):
    services = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)
    received(orders, stock, 2 * DAY)
    nights.run(*services)
    a_day_passes(orders, 9)

    assert nights.run(*services, selection=EVERYTHING).outcome is RunOutcome.NOT_JUDGED
    assert nights.run(*services, selection=EVERYTHING).outcome is RunOutcome.CLEAN


@pytest.mark.parametrize("groups", [None, (ExpectedGroup(name="reserve", topics=(TOPIC,)),)])
def test_unjudged_time_is_reported_without_any_row_left(nights, orders, stock, groups):
    """Named groups have no route without a row, and so the run was clean."""
    services = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK, groups=groups)
    received(orders, stock, 60)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    set_back(orders, timedelta(days=10), with_rows=True)
    for service in (orders, stock):
        with service.engine.begin() as connection:
            connection.execute(delete(service.tables.outbox))
            connection.execute(delete(service.tables.inbox))

    night = nights.run(*services)

    assert night.outcome is RunOutcome.NOT_JUDGED
    (told,) = night.problems
    assert told.startswith("no run has judged the events between orders and stock from ")
    assert nights.run(*services).outcome is RunOutcome.CLEAN


@pytest.mark.parametrize(
    ("since", "until", "told"),
    [
        (30, 20, "could not be judged: their rows may have been purged"),
        (30, None, "could not be judged: their rows may have been purged"),
        (1, -1, "could not be judged yet: they are in flight, or still to come"),
        (-1, -2, "could not be judged yet: they are in flight, or still to come"),
        (6, 1, ""),
        (6, None, ""),
    ],
)
def test_requested_time_that_cannot_be_judged_is_reported(
    nights, orders, stock, since, until, told
):
    """The report advises this request for a time that no run has judged; it used to be clean."""
    group = ExpectedGroup(name="reserve", topics=(TOPIC,))
    services = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK, groups=(group,))
    received(orders, stock, 2 * DAY)
    now = orders.now()
    window = Selection(
        written_since=now - timedelta(days=since),
        written_until=None if until is None else now - timedelta(days=until),
    )

    run = nights.run(*services, selection=window)

    assert run.outcome is (RunOutcome.NOT_JUDGED if told else RunOutcome.CLEAN)
    assert [told in problem for problem in run.problems] == ([True] if told else [])


def test_mismatch_older_than_the_retention_leaves_no_gap(nights, orders, stock):
    """Runs that are not good have judged as well, and the next runs start where they started."""
    group = ExpectedGroup(name="reserve", topics=(TOPIC,))
    services = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK, groups=(group,))
    received(orders, stock, 60)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    a_day_passes(orders, 6)
    missing = orders.write(age=60)
    assert nights.run(*services).outcome is RunOutcome.MISMATCHES
    a_day_passes(orders, 6)
    stock.receive(missing, group="reserve", source="orders", age=60)

    night = nights.run(*services)

    assert (mode(night), night.outcome) == (Mode.INCREMENTAL, RunOutcome.CLEAN)


def test_a_pair_that_a_transaction_leaves_in_flight_is_not_clean(nights, services):
    orders, stock, mail = services
    margin = timedelta(seconds=2)
    named = [
        each.database(groups=(ExpectedGroup(name=each.name, topics=(TOPIC,)),))
        for each in (stock, mail)
    ]
    with mail.engine.connect() as forgotten:
        forgotten.execute(text("SELECT 1"))
        time.sleep(3)
        event = orders.write(age=0)
        stock.receive(event, group="stock", source="orders", age=0)
        time.sleep(3)

        for expected in (Mode.FULL, Mode.INCREMENTAL):
            night = nights.run(orders.database(), *named, margin=margin)

            assert (mode(night), night.outcome) == (expected, RunOutcome.NOT_JUDGED)
            (told,) = night.problems
            assert told.startswith("nothing that has moved between orders and group mail of mail ")
    assert nights.run(orders.database(), *named, margin=margin).outcome is RunOutcome.MISMATCHES


def test_idle_service_is_not_read_from_its_beginning(nights, services):
    orders, stock, mail = services
    letters = {"topic": "letters", "event_type": "letters"}
    of = [
        orders.database(groups=(), retention=A_WEEK),
        stock.database(groups=(ExpectedGroup(name="stock", topics=(TOPIC,)),), retention=A_WEEK),
        mail.database(groups=(ExpectedGroup(name="mail", topics=("letters",)),), retention=A_WEEK),
    ]
    stock.receive(orders.write(age=DAY), group="stock", source="orders", age=DAY)
    mail.receive(
        orders.write(age=DAY, **letters), group="mail", source="orders", age=DAY, **letters
    )
    nights.run(*of)
    first = orders.now()

    for _ in range(2):
        mail.receive(
            orders.write(age=0, **letters), group="mail", source="orders", age=0, **letters
        )
        a_day_passes(of[0], 0.5)
        night = nights.run(*of)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, RunOutcome.CLEAN)
        assert night.totals == {Verdict.MATCHED: night.totals[Verdict.MATCHED]}
        assert "stock" not in {pair.downstream for pair in night.by_pair}
        assert night.selection.moved_since.keys() == {"orders", "stock", "mail"}
        assert night.selection.moved_since["stock"] > first - timedelta(days=0.6)


def test_corrected_clock_leads_to_a_full_run(nights, orders, stock):
    services = orders.database(), stock.database()
    received(orders, stock, DAY)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    a_day_passes(orders, -2 / 24)
    orders.write(age=60)
    a_day_passes(orders, 1 / 24)

    night = nights.run(*services)

    assert (mode(night), night.outcome) == (Mode.FULL, RunOutcome.MISMATCHES)
    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1
    assert "was set back" in night.full_because[0]
