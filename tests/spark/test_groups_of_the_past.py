"""Tests of groups that have changed: former groups, groups that a type left, unnamed groups."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete

from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import EVERYTHING
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes
from tests.spark.planting import TOPIC

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_WEEK = timedelta(days=7)
CLEAN, MISMATCHES, NOT_JUDGED = RunOutcome.CLEAN, RunOutcome.MISMATCHES, RunOutcome.NOT_JUDGED
AUDIT = FormerGroup(name="audit", event_type=TOPIC)


def placed_and_given_up(services, *, age, audit=True, returned=True):
    """Plant an event that mail gives up and audit of stock applies, and perhaps compensates."""
    orders, stock, mail = services
    event = orders.write(age=age)
    if audit:
        stock.receive(event, group="audit", source="orders", age=age)
    mail.receive(event, InboxStatus.MAX_RECONSUMED, group="mail", source="orders", age=age)
    back = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders"}
    rollback = mail.write(age=age, **back)
    of = {"source": "mail", "age": age, "compensated_id": event, **back}
    orders.receive(rollback, group="undo", **of)
    if returned:
        stock.receive(rollback, group="audit", **of)


@pytest.mark.parametrize("push_down", [True, False])
def test_a_former_group_is_to_compensate_what_it_has_applied(nights, services, push_down):
    orders, stock, mail = (service.database(retention=A_WEEK) for service in services)
    placed_and_given_up(services, age=3 * DAY)
    assert nights.run(orders, stock, mail, push_down=push_down).outcome is CLEAN
    a_day_passes(orders, 2)
    stock = replace(stock, former_groups=(AUDIT,))
    # A former group lacks nothing of an event that it has not applied.
    placed_and_given_up(services, age=DAY, audit=False, returned=False)
    night = nights.run(orders, stock, mail, push_down=push_down)
    assert (night.outcome, night.problems) == (CLEAN, ()), night.by_pair
    placed_and_given_up(services, age=DAY)
    placed_and_given_up(services, age=DAY, returned=False)
    # Otherwise a night would skip these rows, because they are planted as rows of an earlier day.
    a_day_passes(orders, 2)

    for selection in (None, EVERYTHING):
        night = nights.run(orders, stock, mail, push_down=push_down, selection=selection)

        assert night.totals[Verdict.MISSING_DOWNSTREAM] == 1, night.by_pair


MOVED = {"topic": "orders.v2", "event_type": TOPIC}


def test_type_moved_to_an_unread_topic_prevents_a_clean_run(nights, orders, stock):
    of = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)
    event = orders.write(age=2 * DAY)
    for group in ("reserve", "mail"):
        stock.receive(event, group=group, source="orders", age=2 * DAY)
    assert nights.run(*of).outcome is CLEAN
    a_day_passes(of[0], 2)
    moved = [orders.write(age=DAY, **MOVED) for _ in range(3)]
    for event in moved:
        stock.receive(event, group="reserve", source="orders", age=DAY, **MOVED)

    for selection in (None, EVERYTHING):
        night = nights.run(*of, selection=selection)

        assert night.outcome is NOT_JUDGED
        (problem,) = night.problems
        assert "is sent on orders.v2 now" in problem
        assert "group mail of stock" in problem
    former = FormerGroup(name="mail", event_type=TOPIC)
    assert nights.run(of[0], replace(of[1], former_groups=(former,))).outcome is CLEAN
    # Events still arrive on the old topic too.
    event = orders.write(age=0, settled_age=0)
    for group in ("reserve", "mail"):
        stock.receive(event, group=group, source="orders", age=0)
    assert nights.run(*of).outcome is CLEAN
    # The group follows, and lacks the earlier events.
    stock.receive(moved[0], group="mail", source="orders", age=DAY, **MOVED)
    assert nights.run(*of).totals[Verdict.MISSING_DOWNSTREAM] == 2


@pytest.mark.parametrize("retention", [A_WEEK, None], ids=["a week", "for ever"])
def test_type_moved_in_a_gradual_roll_out_prevents_a_clean_run(nights, orders, stock, retention):
    of = orders.database(retention=retention), stock.database(retention=retention)

    def old(age):
        event = orders.write(age=age)
        for group in ("reserve", "mail"):
            stock.receive(event, group=group, source="orders", age=age)

    def new(age):
        event = orders.write(age=age, **MOVED)
        stock.receive(event, group="reserve", source="orders", age=age, **MOVED)

    old(6.5 * DAY)
    assert nights.run(*of).outcome is CLEAN
    a_day_passes(of[0], 6)
    new(6 * DAY)
    old(5 * DAY)
    for days in (4, 3, 2, 1):
        new(days * DAY)

    for selection in (None, EVERYTHING):
        night = nights.run(*of, selection=selection)

        assert night.outcome is NOT_JUDGED
        assert "group mail of stock" in "".join(night.problems)


@pytest.mark.parametrize("parallel", [(), ("orders.eu", "orders.us")])
def test_renamed_topic_next_to_another_prevents_a_clean_run(nights, orders, stock, parallel):
    eu, us, renamed = ({"topic": f"orders.{on}", "event_type": TOPIC} for on in ("eu", "us", "us2"))
    home = orders.database(retention=A_WEEK, parallel_topics=parallel)
    there = stock.database(retention=A_WEEK)

    def received_by(groups, topic, days):
        event = orders.write(age=days * DAY, **topic)
        for group in groups:
            stock.receive(event, group=group, source="orders", age=days * DAY, **topic)

    for days in (6, 5):
        received_by(("mail",), eu, days)
        received_by(("mail", "reserve"), us, days)
    for days in (3, 0.1):
        received_by(("mail",), eu, days)
        received_by(("reserve",), renamed, days)

    for selection in (None, EVERYTHING):
        night = nights.run(home, there, selection=selection)

        assert night.outcome is NOT_JUDGED
        mine = [problem for problem in night.problems if "group mail of stock" in problem]
        assert ["orders.us2 now, and no longer on orders.us" in each for each in mine] == [True]


def test_idle_topic_next_to_another_is_resolved_as_parallel(nights, orders, stock):
    eu, us = ({"topic": f"orders.{shop}", "event_type": TOPIC} for shop in ("eu", "us"))
    home, there = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)
    for group, days, topic in (("us", 6.5, us), ("eu", 6, eu), ("eu", 3, eu), ("eu", 1, eu)):
        event = orders.write(age=days * DAY, **topic)
        stock.receive(event, group=group, source="orders", age=days * DAY, **topic)

    def told(*services):
        return nights.run(*services, selection=EVERYTHING).problems

    (problem,) = told(home, there)
    assert "list orders.us, orders.eu in `parallel_topics` of orders" in problem
    parallel = replace(home, parallel_topics=("orders.eu", "orders.us"))
    assert told(parallel, there) == ()
    for service, table in ((orders, orders.tables.outbox), (stock, stock.tables.inbox)):
        with service.engine.begin() as connection:
            connection.execute(delete(table).where(table.c.topic == us["topic"]))
    assert told(home, there) == (problem,)
    assert told(parallel, there) == ()
    # A topic next to them may be one that the group has to follow.
    event = orders.write(age=DAY, **MOVED)
    stock.receive(event, group="eu", source="orders", age=DAY, **MOVED)
    (problem,) = told(parallel, there)
    assert "is sent on orders.v2 now, and no longer on orders.us" in problem


def test_group_missing_from_the_file_is_reported_until_former(nights, orders, stock):
    reserve, audit = (ExpectedGroup(name=name, topics=(TOPIC,)) for name in ("reserve", "audit"))
    home, named = orders.database(retention=A_WEEK), stock.database(retention=A_WEEK)
    named = replace(named, groups=(reserve, audit))
    event = orders.write(age=2 * DAY)
    for group in ("reserve", "audit"):
        stock.receive(event, group=group, source="orders", age=2 * DAY)
    night = nights.run(home, named)
    assert (night.outcome, night.remarks) == (CLEAN, ())
    a_day_passes(home, 2)
    event = orders.write(age=DAY)
    stock.receive(event, group="audit", source="orders", age=DAY)
    named = replace(named, groups=(audit,))

    for is_purged in (False, True):
        with stock.engine.begin() as connection:
            if is_purged:
                inbox = stock.tables.inbox
                connection.execute(inbox.delete().where(inbox.c.consumer_group == "reserve"))
        night = nights.run(home, named)
        assert night.outcome is CLEAN
        (remark,) = night.remarks
        assert remark.startswith("group reserve of stock has received orders.placed")

    former = replace(named, former_groups=(FormerGroup(name="reserve"),))
    for _ in range(2):
        night = nights.run(home, former)
        assert (night.outcome, night.remarks, night.problems) == (CLEAN, (), ())
    event = orders.write(age=0)
    for group in ("audit", "reserve"):
        stock.receive(event, group=group, source="orders", age=0)
    (problem,) = nights.run(home, former).problems
    assert "names reserve, which has received orders.placed since" in problem
