"""What a run reads for its report: different events, keys, and the days of topics."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import KEY_LETTERS, TOPICS, Day, FoundRow, OutputFolder, Pair
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest
from shieldtx.reconcile.run_context import RunContext
from shieldtx.reconcile.verdicts import Verdict
from spark.results.collect import Tally
from spark.results.daily_stats import days_of, traffic_of
from spark.results.row_samples import with_samples
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC
from tests.spark.running import reconciled

V = Verdict
PLACED = Pair(kind=TxKind.COMMIT, upstream="orders", downstream=TOPICS, group=TOPIC)
RESERVE = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")


@pytest.fixture
def queries(orders, stock, tmp_path, spark):
    """The queries of a run that reads topics; these steps do not connect to the broker."""
    request = ReconcileRequest(
        services=(orders.database(), stock.database()),
        folder=tmp_path,
        broker=BrokerAccess(bootstrap="127.0.0.1:1"),
    )
    return Databases(spark=spark, request=request, lately=datetime.now(UTC))


def row(event_id, **changes):
    fields = {
        "pair": RESERVE,
        "verdict": V.MISSING_DOWNSTREAM,
        "event_id": str(event_id),
        "topic": TOPIC,
        "event_type": TOPIC,
        "upstream_status": OutboxStatus.PROCESSED,
    }
    return FoundRow(**(fields | changes))


def sha(text):
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def test_masked_keys_are_the_start_of_their_hash(queries, orders, stock):
    written = orders.write(key="kunde-ä", biz_key="order-4711")
    without = orders.write(key=None)
    received = stock.receive(new_event_id(), group="reserve", source="orders", key="only here")
    rows = [row(written), row(without), row(received, upstream_status=None)]
    found = with_samples(queries, rows, show=False)
    assert [(each.key, each.biz_key, each.payload) for each in found] == [
        (sha("kunde-ä"), sha("order-4711"), None),
        (None, None, None),
        (sha("only here"), None, None),
    ]


def test_shown_keys_are_cut_to_a_readable_length(queries, orders):
    written = orders.write(key="k" * (KEY_LETTERS + 1), biz_key="order-4711", payload='{"a": 1}')
    (found,) = with_samples(queries, [row(written)], show=True)
    assert (found.key, found.biz_key) == ("k" * KEY_LETTERS, "order-4711")
    assert (found.payload, found.payload_letters) == ('{"a": 1}', 8)


def test_event_without_a_row_has_no_key(queries):
    lost = row(new_event_id(), pair=PLACED, upstream_status=None)
    assert with_samples(queries, [lost], show=True) == (lost,)


def test_days_of_a_topic_count_all_its_events(queries, orders):
    now = orders.now()
    for status in (OutboxStatus.PROCESSED, OutboxStatus.PROCESSED, OutboxStatus.INIT):
        orders.write(status, age=60, settled_age=59)
    orders.write(topic="orders.audited")
    traffic = traffic_of(queries, now=now)
    day = (now - timedelta(hours=1)).astimezone(UTC).date()
    tallies = [
        Tally(pair=PLACED, verdict=V.ON_TOPIC, rows=2),
        Tally(pair=PLACED, verdict=V.ABSENT_FROM_TOPIC, rows=1, day=day),
    ]
    (found,) = days_of(traffic, tallies)
    assert found == Day(
        pair=PLACED, day=day, events=3, mismatches=1, publish_ms=(60_000.0, 60_000.0, 60_000.0)
    )


def test_report_counts_events_and_findings_apart(orders, stock, tmp_path, spark, jdbc_jar):
    orders.write(key="secret-key")
    groups = tuple(ExpectedGroup(name=name, topics=(TOPIC,)) for name in ("reserve", "mail"))
    context = RunContext(version="1.2.3", configuration="nightly", options=("--config", "/n.toml"))
    findings = reconciled(
        spark,
        ReconcileRequest(
            services=(orders.database(), stock.database(groups=groups)),
            folder=tmp_path,
            run_id="r1",
            margin=timedelta(minutes=10),
            jdbc_jar=jdbc_jar,
            context=context,
        ),
    )
    assert findings.totals == {V.MISSING_DOWNSTREAM: 2}
    assert findings.mismatched_events == 1
    assert findings.context == context
    folder = OutputFolder(path=tmp_path)
    page = folder.page.read_text()
    assert "2 mismatches in 1 event." in page
    assert "shieldtx reconcile repair r1 --config /n.toml" in page
    assert sha("secret-key") in page
    assert "secret-key" not in page + folder.findings.read_text()
