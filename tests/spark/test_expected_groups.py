"""Tests of which events a run expects in which groups, by the file and by earlier runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.request import EVERYTHING, Selection
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.schema import Schema
from tests.spark.nights import a_day_passes, mode, set_back
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)
CHANGED = {"event_type": "orders.changed", "topic": "orders.changed"}


def given_up(orders, stock, *, compensated_by=None):
    """Plant an event that a group gave up, and its rollback, which is lost or compensated."""
    event = orders.write(age=DAY, **CHANGED)
    of = {"group": "reserve", "source": "orders", "age": DAY, **CHANGED}
    stock.receive(event, InboxStatus.MAX_RECONSUMED, **of)
    of = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders", "age": DAY}
    rollback = stock.write(**of, **CHANGED)
    if compensated_by is not None:
        done = {"group": compensated_by, "source": "stock", "compensated_id": event}
        orders.receive(rollback, **of, **done, **CHANGED)


@pytest.mark.parametrize("push_down", [True, False])
def test_lost_rollback_of_undeclared_type_is_missed_after_others(nights, orders, stock, push_down):
    """The group compensates the type, and the file does not declare the compensation."""
    one = orders.write(age=DAY)
    stock.receive(one, group="reserve", source="orders", age=DAY)
    undo = ExpectedGroup(name="undo", kind=TxKind.ROLLBACK, topics=(TOPIC,))
    reserve = ExpectedGroup(name="reserve", topics=(TOPIC, "orders.changed"))
    services = (
        orders.database(retention=A_WEEK, groups=(undo,)),
        stock.database(retention=A_WEEK, groups=(reserve,)),
    )
    given_up(orders, stock, compensated_by="undo")
    first = nights.run(*services, push_down=push_down)
    assert (first.outcome, first.problems) == (RunOutcome.CLEAN, ())
    a_day_passes(orders)
    given_up(orders, stock)

    night = nights.run(*services, push_down=push_down)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1


MONTHLY = {"event_type": "invoice.closed", "topic": "invoices"}
BOTH = ("reserve", "mail")


def daily(orders, stock, *, age, groups=BOTH, **of):
    event = orders.write(age=age, **of)
    for group in groups:
        stock.receive(event, group=group, source="orders", age=age, **of)
    return event


def purged(service, condition="true"):
    with service.engine.begin() as connection:
        schema = f"{service.schema}." if service.schema else ""
        connection.execute(text(f"DELETE FROM {schema}shield_inbox WHERE {condition}"))


def week_old(orders, stock, **changed):
    return orders.database(retention=A_WEEK), stock.database(retention=A_WEEK, **changed)


@pytest.fixture
def stood_still(nights, orders, stock):
    """Run two nights; mail stands still after the first, has purged everything after the second."""
    services = week_old(orders, stock)
    daily(orders, stock, age=8 * DAY)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    a_day_passes(orders, 5)
    for days in (1, 2, 3):
        daily(orders, stock, age=days * DAY, groups=("reserve",))
    night = nights.run(*services)
    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 3
    assert night.remarks == ()
    purged(stock, "consumer_group = 'mail'")
    return services


LOOKS_AT = {
    "what has moved": {},
    "all": {"selection": EVERYTHING},
    "all, row by row": {"selection": EVERYTHING, "push_down": False},
    "a window": {
        "selection": Selection(written_since=datetime.now(UTC) - timedelta(days=5)),
    },
}


@pytest.mark.parametrize("looks_at", LOOKS_AT)
def test_group_that_has_purged_all_rows_is_missed_as_before(looks_at, nights, stood_still, orders):
    for _ in range(2):
        night = nights.run(*stood_still, **LOOKS_AT[looks_at])

        assert (night.outcome, night.totals[Verdict.MISSING_DOWNSTREAM]) == (
            RunOutcome.MISMATCHES,
            3,
        )
        (remark,) = night.remarks
        assert "group mail of stock has nothing of orders.placed (orders.placed) left" in remark
        assert "`former_groups`" in remark
        a_day_passes(orders)


def test_rare_type_is_expected_after_the_purge_of_its_last_event(nights, orders, stock):
    services = week_old(orders, stock)
    daily(orders, stock, age=2 * DAY)
    daily(orders, stock, age=2 * DAY, **MONTHLY)
    nights.run(*services)
    a_day_passes(orders)
    purged(stock, "event_type = 'invoice.closed'")
    with orders.engine.begin() as connection:
        connection.execute(text("DELETE FROM shield_outbox WHERE event_type = 'invoice.closed'"))
    daily(orders, stock, age=DAY)
    night = nights.run(*services)
    assert (night.outcome, night.remarks) == (RunOutcome.CLEAN, ())
    a_day_passes(orders)
    daily(orders, stock, age=DAY, groups=("reserve",), **MONTHLY)

    night = nights.run(*services)

    assert (mode(night), night.totals[Verdict.MISSING_DOWNSTREAM]) == (Mode.INCREMENTAL, 1)
    (remark,) = night.remarks
    assert "group mail of stock has nothing of invoice.closed (invoices) left" in remark


@pytest.mark.parametrize("push_down", [True, False])
def test_named_type_without_kept_events_is_not_a_typo(nights, orders, stock, push_down):
    """The event occurs once a month, or all events were purged while a shop was closed."""
    reserve = ExpectedGroup(name="reserve", topics=(TOPIC, "invoices"))
    services = week_old(orders, stock, groups=(reserve,))
    daily(orders, stock, age=2 * DAY, groups=("reserve",))
    daily(orders, stock, age=2 * DAY, groups=("reserve",), **MONTHLY)
    assert nights.run(*services, push_down=push_down).outcome is RunOutcome.CLEAN
    for is_purged in ("event_type = 'invoice.closed'", "true"):
        set_back(orders, timedelta(days=6), with_rows=True)
        purged(stock, is_purged)
        with orders.engine.begin() as connection:
            connection.execute(text(f"DELETE FROM shield_outbox WHERE {is_purged}"))

        night = nights.run(*services, push_down=push_down, selection=EVERYTHING)

        assert night.problems == ()


STORED = {
    "its sections stand in another order": lambda services: services[::-1],
    "it has another name": lambda services: services,
}


@pytest.mark.parametrize("file", STORED)
def test_past_of_runs_is_independent_of_their_storage(file, nights, stood_still):
    name = "nightly" if "order" in file else "renamed"

    night = nights.run(*STORED[file](stood_still), scope=name)

    assert night.full_because == ("no earlier run was good",)
    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 3


MAIL = FormerGroup(name="mail")


def test_what_a_former_group_lacks_is_not_missed(nights, stood_still, orders, stock):
    services = week_old(orders, stock, former_groups=(MAIL,))

    first, second = nights.run(*services), nights.run(*services)

    assert (first.outcome, mode(first), first.remarks) == (RunOutcome.CLEAN, Mode.FULL, ())
    assert (second.outcome, mode(second)) == (RunOutcome.CLEAN, Mode.INCREMENTAL)
    assert nights.run(*week_old(orders, stock)).totals[Verdict.MISSING_DOWNSTREAM] == 3


def test_former_group_of_one_type_is_expected_to_have_others(nights, stood_still, orders):
    stock = stood_still[1]
    placed = FormerGroup(name="mail", event_type="orders.placed")
    first = nights.run(stood_still[0], replace(stock, former_groups=(placed,)))
    assert first.outcome is RunOutcome.CLEAN
    other = replace(stock, former_groups=(FormerGroup(name="mail", event_type="orders.paid"),))

    night = nights.run(stood_still[0], other)

    assert night.totals[Verdict.MISSING_DOWNSTREAM] == 3
    assert any("names mail: orders.paid, and no run" in each for each in night.problems)


@pytest.mark.parametrize("name", ["mial", "mail"])
def test_former_group_that_no_run_has_seen_prevents_clean_run(nights, orders, stock, name):
    daily(orders, stock, age=DAY, groups=("reserve",))
    services = week_old(orders, stock, former_groups=(FormerGroup(name=name),))

    for _ in range(2):
        night = nights.run(*services)

        assert night.outcome is RunOutcome.NOT_JUDGED
        (problem,) = night.problems
        assert problem.startswith(f"`former_groups` of stock names {name}, and no run has seen")


def test_former_group_that_still_receives_prevents_clean_run(nights, stood_still, orders, stock):
    services = week_old(orders, stock, former_groups=(MAIL,))
    daily(orders, stock, age=DAY)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    daily(orders, stock, age=0)

    for _ in range(2):
        night = nights.run(*services)

        assert night.outcome is RunOutcome.NOT_JUDGED
        (problem,) = night.problems
        assert "names mail, which has received orders.placed since" in problem


RECREATE = (
    "CREATE TABLE copied (LIKE shield_inbox INCLUDING ALL)",
    "DROP TABLE shield_inbox",
    "ALTER TABLE copied RENAME TO shield_inbox",
)


def test_runs_of_other_databases_create_no_expectations(nights, stood_still, orders, stock):
    """For example of recreated tables, or of another file whose runs have the same name."""
    for step in RECREATE:
        with stock.engine.begin() as connection:
            connection.execute(text(f"SET LOCAL search_path = {stock.schema or 'public'}"))
            connection.execute(text(step))
    # The copy has the indexes under other names.
    Schema(stock.engine, schema=stock.schema).upgrade()
    daily(orders, stock, age=DAY, groups=("reserve",))

    night = nights.run(*stood_still)

    assert {pair.group for pair in night.by_pair} == {"reserve"}
