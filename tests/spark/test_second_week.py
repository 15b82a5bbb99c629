"""Tests that rows that only an inbox keeps, for its longer retention, are counted and not read."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from shieldtx.domain.events import first_id_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.verdicts import Verdict
from spark import job
from spark.prefetch import prefetching
from spark.sources import outbox_inbox, purged_upstream
from tests.spark.nights import MARGIN
from tests.spark.planting import TOPIC, Service, inbox_row, outbox_row
from tests.spark.running import reconciled

pytestmark = pytest.mark.thorough

DAY = 24 * 60
WEEK = timedelta(days=7)
BOTH_WAYS = pytest.mark.parametrize("push_down", [True, False])
EVENTS = range(300)


def id_of(service: Service, age: float, number: int) -> UUID:
    written = first_id_of((service.now() - timedelta(minutes=age)).timestamp())
    return UUID(int=written.int + number)


def fill(service: Service, table: str, *, age: float, numbers=EVENTS, group: str = "reserve"):
    """Insert rows of settled events of one age; equal ages and numbers are one event."""
    now = service.now()
    rows = []
    for number in numbers:
        event_id = id_of(service, age, number)
        if table == "outbox":
            row = outbox_row("orders", event_id, OutboxStatus.PROCESSED, now=now, age=age)
        else:
            done = InboxStatus.PROCESSED
            row = inbox_row("orders", event_id, done, group=group, now=now, age=age)
        rows.append(row)
    service.insert(**{table: rows})
    return [row["event_id"] for row in rows]


@pytest.fixture
def two_weeks(orders, stock):
    """Make an outbox that keeps its events for a week, and an inbox that keeps them for two."""
    sent = fill(orders, "outbox", age=3 * DAY)
    fill(stock, "inbox", age=10 * DAY)
    now = stock.now()
    done = InboxStatus.PROCESSED
    stock.insert(
        inbox=[
            inbox_row("orders", one, done, group="reserve", now=now, age=3 * DAY) for one in sent
        ]
    )


@pytest.fixture
def read(monkeypatch, spark):
    """Count the rows of outboxes and inboxes that Spark reads."""
    counts = []
    for name in ("outbox", "inbox"):
        whole = getattr(outbox_inbox, name)

        def noting(*args, _whole=whole, **named):
            frame = _whole(*args, **named)
            counts.append(frame.count())
            return frame

        monkeypatch.setattr(outbox_inbox, name, noting)
    return counts


def request(orders, stock, folder: Path, jdbc_jar, **changes) -> ReconcileRequest:
    reserve = ExpectedGroup(name="reserve", topics=(TOPIC,))
    services = (
        orders.database(retention=WEEK),
        stock.database(retention=WEEK, groups=(reserve,)),
    )
    return ReconcileRequest(
        services=services, folder=folder, margin=MARGIN, jdbc_jar=jdbc_jar, **changes
    )


def listed(folder: Path) -> dict[str, str]:
    rows = pq.read_table(OutputFolder(path=folder).rows).to_pylist()
    return {row["event_id"]: row["verdict"] for row in rows}


@BOTH_WAYS
def test_rows_of_purged_events_are_counted_and_not_listed(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar, push_down
):
    found = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, push_down=push_down))

    assert found.outcome is RunOutcome.CLEAN
    assert found.totals == {Verdict.MATCHED: 300, Verdict.TOO_OLD: 300}
    assert listed(tmp_path) == {}


def test_rows_of_purged_events_are_not_read(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar, read
):
    found = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))

    assert found.totals[Verdict.TOO_OLD] == 300
    assert sum(read) == 0


@BOTH_WAYS
def test_mismatches_among_rows_of_purged_events_are_found(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar, push_down
):
    old = {"age": 10 * DAY}
    # The outbox has the event: whatever its age, it is compared.
    changed = orders.write(event_id=id_of(orders, 10 * DAY, 1_000), **old)
    stock.receive(changed, group="reserve", source="orders", payload="{}", **old)
    matched = orders.write(event_id=id_of(orders, 10 * DAY, 1_001), **old)
    stock.receive(matched, group="reserve", source="orders", **old)
    renamed = orders.write(event_id=id_of(orders, 10 * DAY, 1_002), event_type="other", **old)
    stock.receive(renamed, group="reserve", source="orders", **old)
    parked = orders.write(OutboxStatus.FAILED, event_id=id_of(orders, 20 * DAY, 1), age=20 * DAY)
    stock.receive(parked, group="reserve", source="orders", age=20 * DAY)
    # An old id, and a row of today.
    unknown = id_of(orders, 10 * DAY, 1_003)
    stock.receive(unknown, group="reserve", source="orders", age=60)
    moving = id_of(orders, 10 * DAY, 1_004)
    stock.receive(moving, group="reserve", source="orders", settled_age=0, **old)
    # Given up without a rollback; and taken back by its service.
    refused, undone = (id_of(orders, 10 * DAY, n) for n in (1_005, 1_006))
    given_up = InboxStatus.MAX_RECONSUMED
    stock.receive(refused, given_up, group="reserve", source="orders", **old)
    stock.receive(undone, group="reserve", source="orders", **old)
    taken_back = {"causation_id": undone, "causation_source": "orders", "kind": TxKind.ROLLBACK}
    rollback = stock.write(age=5, status=OutboxStatus.INIT, **taken_back)

    found = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, push_down=push_down))

    assert listed(tmp_path) == {
        str(changed): "PAYLOAD_DIFFERS",
        str(renamed): "ENVELOPE_DIFFERS",
        str(parked): "STATUS_DISAGREES",
        str(unknown): "UNKNOWN_UPSTREAM",
        str(moving): "IN_FLIGHT",
        str(undone): "IN_FLIGHT",
        str(rollback): "IN_FLIGHT",
    }
    assert found.totals[Verdict.MATCHED] == 301
    assert found.totals[Verdict.TOO_OLD] == 301, "the one that was given up, too"


def test_rows_of_purged_events_are_counted_by_group(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar
):
    fill(stock, "inbox", age=10 * DAY, numbers=range(100), group="ledger")
    found = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar))
    counts = {(c.pair.group, c.verdict): c.rows for c in found.counts}
    assert counts == {
        ("reserve", Verdict.MATCHED): 300,
        ("reserve", Verdict.TOO_OLD): 300,
        ("ledger", Verdict.TOO_OLD): 100,
    }


@BOTH_WAYS
def test_outbox_with_more_old_events_than_asked_is_judged_alike(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar, push_down, monkeypatch
):
    monkeypatch.setattr(purged_upstream, "MOST", 7)
    kept = fill(orders, "outbox", age=10 * DAY, numbers=range(0, 300, 10))
    done, now = InboxStatus.PROCESSED, stock.now()
    stock.insert(
        inbox=[
            inbox_row("orders", one, done, group="reserve", now=now, age=10 * DAY) for one in kept
        ]
    )

    found = reconciled(spark, request(orders, stock, tmp_path, jdbc_jar, push_down=push_down))

    assert found.totals == {Verdict.MATCHED: 330, Verdict.TOO_OLD: 300}
    assert listed(tmp_path) == {}


def test_outbox_rows_purged_during_the_run_are_counted_once(
    two_weeks, orders, stock, spark, tmp_path, jdbc_jar
):
    old = id_of(orders, 9 * DAY, 0)
    orders.write(event_id=old, age=9 * DAY)
    stock.receive(old, group="reserve", source="orders", age=9 * DAY)
    with prefetching(request(orders, stock, tmp_path, jdbc_jar)) as prefetch:
        assert prefetch.digests is not None
        prefetch.digests.result()
        with orders.engine.begin() as connection:
            outbox = orders.tables.outbox
            connection.execute(outbox.delete().where(outbox.c.event_id == old))
        found = job.run(spark, prefetch)

    assert sum(found.totals.values()) == 601
    assert listed(tmp_path) == {}
