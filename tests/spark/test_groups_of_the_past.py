"""Groups that have changed: ones that a type has left, and ones without a name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.reconcile.request import EVERYTHING
from shieldtx.reconcile.verdicts import Verdict
from tests.spark.nights import a_day_passes
from tests.spark.planting import TOPIC

DAY = 24 * 60
A_WEEK = timedelta(days=7)
CLEAN, NOT_JUDGED = RunOutcome.CLEAN, RunOutcome.NOT_JUDGED
MOVED = {"topic": "orders.v2", "event_type": TOPIC}


def test_a_type_that_moves_to_a_topic_that_a_group_does_not_read_is_no_clean_run(
    nights, orders, stock
):
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
    # Events still come on the topic of old as well.
    event = orders.write(age=0, settled_age=0)
    for group in ("reserve", "mail"):
        stock.receive(event, group=group, source="orders", age=0)
    assert nights.run(*of).outcome is CLEAN
    # The group follows, and lacks what came before.
    stock.receive(moved[0], group="mail", source="orders", age=DAY, **MOVED)
    assert nights.run(*of).totals[Verdict.MISSING_DOWNSTREAM] == 2


def test_a_group_that_the_file_leaves_out_is_told_of_until_it_is_a_former_one(
    nights, orders, stock
):
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
