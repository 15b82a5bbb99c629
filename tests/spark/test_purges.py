"""Tests that the real retention of services decides what can be missed, not reconcile.toml."""

from __future__ import annotations

from datetime import timedelta

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from shieldtx.domain.events import first_id_of
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.incremental import Mode
from shieldtx.reconcile.request import ReconcileRequest
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.store.retention import SqlRetentionStore
from spark import job
from spark.prefetch import prefetching
from tests.spark.nights import MARGIN, a_day_passes, mode
from tests.spark.planting import TOPIC, Service
from tests.spark.running import reconciled

pytestmark = pytest.mark.thorough

DAY = 24 * 60
A_DAY = timedelta(days=1)
A_WEEK = timedelta(days=7)
RESERVE = ExpectedGroup(name="reserve", topics=(TOPIC,))


def delivered(orders: Service, stock: Service, *ages: float) -> None:
    """Write events of the given ages in minutes that the group has processed at once."""
    for age in ages:
        event_id = first_id_of((orders.now() - timedelta(minutes=age)).timestamp())
        orders.write(event_id=event_id, age=age)
        stock.receive(event_id, group="reserve", source="orders", age=age)


@pytest.mark.parametrize("push_down", [True, False])
def test_unreceived_event_sent_twice_is_reported_until_too_old(nights, orders, stock, push_down):
    """An operator replays an old event without a confirmation: no row shows which group has it."""
    delivered(orders, stock, 3 * DAY, 60)
    services = of_a_week(orders, stock)
    assert nights.run(*services).outcome is RunOutcome.CLEAN
    a_day_passes(orders)
    replayed = orders.write(age=8 * DAY, settled_age=60, unconfirmed=True)
    orders.write(age=16 * DAY, settled_age=8 * DAY, unconfirmed=True)

    for _ in range(2):
        night = nights.run(*services, push_down=push_down)

        assert (mode(night), night.outcome) == (Mode.INCREMENTAL, RunOutcome.NOT_JUDGED)
        (told,) = night.problems
        assert told.startswith(
            "1 events of orders were sent more than once, and group reserve of stock has no row"
        )
        rows = pq.read_table(OutputFolder(path=nights.folder).rows).to_pylist()
        assert [row["event_id"] for row in rows if row["ambiguous"]] == [str(replayed)]
        a_day_passes(orders)


def purge_inbox(service: Service, older_than: timedelta) -> int:
    store = SqlRetentionStore(service.engine, service.tables)
    return store.purge_inbox(older_than=older_than, limit=1000).removed


def of_a_week(orders: Service, stock: Service):
    return (
        orders.database(retention=A_WEEK),
        stock.database(retention=A_WEEK, groups=(RESERVE,)),
    )


@pytest.mark.parametrize("push_down", [True, False])
def test_rows_purged_earlier_than_configured_are_too_old(nights, orders, stock, push_down):
    delivered(orders, stock, 2 * DAY, 60)
    lost = orders.write(age=120)
    assert purge_inbox(stock, A_DAY) == 1

    found = nights.run(*of_a_week(orders, stock), push_down=push_down)

    assert found.totals == {
        Verdict.MATCHED: 1,
        Verdict.TOO_OLD: 1,
        Verdict.MISSING_DOWNSTREAM: 1,
    }
    assert [row.event_id for row in found.first_rows] == [str(lost)]
    (remark,) = found.remarks
    assert remark.startswith("stock is configured to keep its rows for 7 days, 0:00:00, and has")
    assert found.problems == ()


def test_event_with_an_outbox_row_purged_early_is_not_unknown(nights, orders, stock):
    delivered(orders, stock, 2 * DAY, 60)
    store = SqlRetentionStore(orders.engine, orders.tables)
    assert store.purge_outbox(older_than=A_DAY, limit=10).removed == 1

    found = nights.run(*of_a_week(orders, stock))

    assert found.totals == {Verdict.MATCHED: 1, Verdict.TOO_OLD: 1}
    assert found.outcome is RunOutcome.CLEAN
    (remark,) = found.remarks
    assert remark.startswith("orders is configured")


def test_purge_between_nights_does_not_change_the_judged_events(nights, orders, stock):
    delivered(orders, stock, 3 * DAY, 2 * DAY, 60)
    services = of_a_week(orders, stock)
    first = nights.run(*services)
    assert (first.outcome, first.remarks) == (RunOutcome.CLEAN, ())
    # Earlier than the purge: no time is left that no run has judged.
    a_day_passes(orders, 0.9)
    assert purge_inbox(stock, A_DAY) == 2

    second = nights.run(*services)

    assert (mode(second), second.outcome, len(second.remarks)) == (
        Mode.INCREMENTAL,
        RunOutcome.CLEAN,
        1,
    )


def test_rows_that_are_purged_while_the_run_reads_are_not_missed(
    orders, stock, spark, tmp_path, jdbc_jar
):
    delivered(orders, stock, 2 * DAY, 60)
    request = ReconcileRequest(
        services=of_a_week(orders, stock),
        folder=tmp_path,
        margin=MARGIN,
        jdbc_jar=jdbc_jar,
        push_down=False,
    )
    with prefetching(request) as prefetch:
        prefetch.clocks.result()
        assert purge_inbox(stock, A_DAY) == 1
        found = job.run(spark, prefetch)

    assert found.totals == {Verdict.MATCHED: 1, Verdict.TOO_OLD: 1}
    assert len(found.remarks) == 1


def test_tables_of_an_earlier_release_are_not_judged(orders, stock, spark, tmp_path):
    """A stored run is refused before it begins; a job that is started alone checks too."""
    delivered(orders, stock, 60)
    with stock.engine.begin() as connection:
        connection.execute(text("DROP TABLE shield.shield_purged"))
    services = of_a_week(orders, stock)

    found = reconciled(spark, ReconcileRequest(services=services, folder=tmp_path, margin=MARGIN))

    assert found.outcome is RunOutcome.NOT_JUDGED
    (problem,) = found.problems
    assert problem.startswith("the tables of stock are of an earlier release")
    assert "shieldtx db upgrade" in problem
