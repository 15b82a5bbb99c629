"""Tests of which rows a run reads, and how often."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, FormerGroup, Received
from shieldtx.reconcile.observed import Past
from shieldtx.reconcile.request import ReconcileRequest, Selection
from spark.compare.read_plan import PlannedReads, plan_of, planned_reads
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC

# A read in a plan that Spark still has to execute; a read that Spark has cached is called a scan.
READ = re.compile(r"^[ :+-]*(Relation|\*\(\d+\) Scan) ", re.MULTILINE)
MOVED = re.compile(r"\b[io]\.settled_at >=")
APPLIED = re.compile(r"\bi\.event_id AS causation_id\b")
_ASKED: list[str] = []


class Counting(Databases):
    """Records the services that are asked for the events that former groups have applied."""

    def frame(self, service, query, **of):
        if APPLIED.search(query):
            _ASKED.append(service.name)
        return super().frame(service, query, **of)


def assert_kept(planned: PlannedReads, what: re.Pattern[str]) -> None:
    """Fail where Spark would read some rows again for the pairs."""
    text = planned.pairs._jdf.queryExecution().withCachedData().toString()
    _, *parts = READ.split(text)
    reads = list(zip(parts[::2], parts[1::2], strict=True))
    found = {how for how, of in reads if what.search(of)}
    assert found
    assert "Relation" not in found


def test_lookups_do_not_repeat_the_reads_of_a_later_run(spark, compiled, orders, stock):
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
    assert_kept(planned, MOVED)
    assert [row.event_id for row in planned.pairs.collect()] == [str(event)]


def test_later_run_reads_events_of_former_groups_once(spark, compiled, services):
    orders, stock, mail = services
    _ASKED.clear()
    event = orders.write(age=300)
    stock.receive(event, group="audit", source="orders", age=300)
    back = {"kind": TxKind.ROLLBACK, "causation_id": event, "causation_source": "orders"}
    rollback = mail.write(age=60, **back)
    seen = Received(
        downstream="stock",
        group="audit",
        source="orders",
        kind=TxKind.COMMIT,
        topic=TOPIC,
        event_type=TOPIC,
    )
    of_rollback = {"source": "mail", "kind": TxKind.ROLLBACK, "causation_source": "orders"}
    former = FormerGroup(name="audit", event_type=TOPIC)
    since = orders.now() - timedelta(minutes=120)
    request = ReconcileRequest(
        services=(
            orders.database(),
            replace(stock.database(), former_groups=(former,)),
            mail.database(),
        ),
        folder=Path("unused"),
        selection=Selection(moved_since=dict.fromkeys(("orders", "stock", "mail"), since)),
        past=Past(received=(seen, replace(seen, **of_rollback))),
    )
    databases = Counting(spark=spark, request=request, lately=orders.now())

    planned = planned_reads(databases, plan_of(databases, None))

    assert _ASKED == ["stock"]
    assert_kept(planned, APPLIED)
    found = [row for row in planned.pairs.collect() if row.consumer_group == "audit"]
    assert {row.event_id: row.downstream_status for row in found} == {
        str(event): "PROCESSED",
        str(rollback): None,
    }
