"""Which rows a run reads, and how often."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.request import ReconcileRequest, Selection
from spark.compare.read_plan import plan_of, planned_reads
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC

# A read that is still to be made, in a plan: one that Spark has kept is called a scan there.
READ = re.compile(r"^[ :+-]*(Relation|\*\(\d+\) Scan) ", re.MULTILINE)
MOVED = re.compile(r"\b[io]\.settled_at >=")


def test_what_a_later_run_has_read_is_not_read_again_for_the_sake_of_what_is_looked_up(
    spark, compiled, orders, stock
):
    event = orders.write(age=300)
    stock.receive(event, group="reserve", source="orders", age=90)
    group = ExpectedGroup(name="reserve", topics=(TOPIC,))
    since = orders.now() - timedelta(minutes=120)
    request = ReconcileRequest(
        services=(orders.database(groups=()), stock.database(groups=(group,))),
        folder=Path("unused"),
        selection=Selection(moved_since={"orders": since, "stock": since}),
    )
    databases = Databases(spark=spark, request=request, lately=orders.now())
    planned = planned_reads(databases, plan_of(databases, None))
    text = planned.pairs._jdf.queryExecution().withCachedData().toString()
    _, *parts = READ.split(text)
    reads = list(zip(parts[::2], parts[1::2], strict=True))
    moved = {how for how, of in reads if MOVED.search(of)}
    assert moved
    assert "Relation" not in moved
    assert [row.event_id for row in planned.pairs.collect()] == [str(event)]
