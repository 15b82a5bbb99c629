"""Tests of real outboxes compared with real topics."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.embedded import EmbeddedKafka
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, Selection
from spark.compare import topic_plan
from spark.sources import topics
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC, Service
from tests.spark.publishing import Topic


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Topic:
    return Topic(kafka.bootstrap, logical=TOPIC).make(partitions=3)


def verdicts(
    spark: SparkSession, topic: Topic, *services: Service, selection: Selection | None = None
) -> dict[UUID, str]:
    """Return verdicts by event, requested as the job requests them."""
    request = ReconcileRequest(
        services=tuple(service.database() for service in services),
        folder=Path("/nowhere"),
        broker=BrokerAccess(
            bootstrap=topic.connection.bootstrap_servers, topic_prefix=topic.prefix
        ),
        selection=selection or Selection(),
    )
    lately = services[0].now() - request.margin
    databases = Databases(spark=spark, request=request, lately=lately)
    clocks = databases.clocks()
    reading = topics.read(spark, request, [(TOPIC, TxKind.COMMIT)])
    assert (reading.obstacles, reading.left_out) == ((), ())
    assert reading.records is not None
    rows = topic_plan.judged(databases, reading.records, reading.horizons, clocks).collect()
    found = {UUID(row.event_id): row.verdict for row in rows}
    assert len(found) == len(rows)
    return found


def test_every_verdict_on_topics_is_found(
    spark: SparkSession, orders: Service, stock: Service, topic: Topic
) -> None:
    now = orders.now()
    there, lost, twice = (orders.write(key=f"k{n}") for n in range(3))
    others = stock.write(key="k")
    waiting = orders.write(OutboxStatus.INIT)
    refused = orders.write(OutboxStatus.FAILED, key="r")
    young = orders.write(age=1)
    first = orders.write(age=50, key="in order")
    second = orders.write(age=40, key="in order")
    ghost = topic.event(key="g")

    def event(event_id: UUID, source: str = "orders") -> Envelope:
        return topic.event(id=event_id, source=source, time=now - timedelta(minutes=60))

    hour_ago = now - timedelta(minutes=60)
    topic.publish_at(hour_ago, event(there), event(twice), event(twice), event(refused), ghost)
    topic.publish_at(hour_ago, event(others, "stock"))
    backwards = [topic.event(id=each, key="in order") for each in (second, first)]
    topic.publish_at(now - timedelta(minutes=40), *backwards, partition=1)
    assert verdicts(spark, topic, orders, stock) == {
        there: "ON_TOPIC",
        lost: "ABSENT_FROM_TOPIC",
        twice: "DUPLICATE_RECORDS",
        others: "ON_TOPIC",
        waiting: "NOT_ON_TOPIC",
        refused: "STATUS_DISAGREES",
        young: "IN_FLIGHT",
        first: "ORDER_INVERTED",
        second: "ON_TOPIC",
        ghost.id: "RECORD_WITHOUT_ROW",
    }


def test_incremental_run_judges_moved_rows_alone(
    spark: SparkSession, orders: Service, topic: Topic
) -> None:
    now = orders.now()
    earlier, lost_earlier = (orders.write(age=600) for _ in range(2))
    there, lost = (orders.write(age=60) for _ in range(2))
    for event_id, age in ((earlier, 600), (there, 60)):
        when = now - timedelta(minutes=age)
        topic.publish_at(when, topic.event(id=event_id, time=when))
    moved = Selection(moved_since={"orders": now - timedelta(minutes=90)})
    found = verdicts(spark, topic, orders, selection=moved)
    assert found == {there: "ON_TOPIC", lost: "ABSENT_FROM_TOPIC"}
    assert set(verdicts(spark, topic, orders)) == {earlier, lost_earlier, there, lost}


def test_incremental_run_finds_older_events_that_were_sent_since(
    spark: SparkSession, orders: Service, topic: Topic
) -> None:
    now = orders.now()

    def ago(minutes: float) -> datetime:
        return now - timedelta(minutes=minutes)

    moved = Selection(moved_since={"orders": ago(60)})
    topic.publish_at(ago(200), topic.event(id=orders.write(age=200), time=ago(200)))
    # In flight at the time of the last run; the row was lost later, as by a failover.
    lost_row = topic.event(time=ago(62))
    # The event waited for days, and its record is missing.
    lost_record = orders.write(age=5_000, settled_age=40)
    # A relay that had lost its lease sent the event again: what is known of its row does not
    # change.
    settled = orders.write(age=100)
    topic.publish_at(ago(100), topic.event(id=settled, time=ago(100)))
    topic.publish_at(ago(58), lost_row, topic.event(id=settled, time=ago(100)))

    found = verdicts(spark, topic, orders, selection=moved)

    assert found == {
        lost_row.id: "RECORD_WITHOUT_ROW",
        lost_record: "ABSENT_FROM_TOPIC",
        settled: "ON_TOPIC",
    }


def test_incremental_run_orders_new_records_after_earlier_ones(
    spark: SparkSession, orders: Service, topic: Topic
) -> None:
    now = orders.now()

    def ago(minutes: float) -> datetime:
        return now - timedelta(minutes=minutes)

    first = orders.write(age=66, settled_age=65, key="k")
    second = orders.write(age=63, settled_age=62, key="k")
    for event_id, written, sent in ((second, 63, 62), (first, 66, 58)):
        event = topic.event(id=event_id, key="k", time=ago(written))
        topic.publish_at(ago(sent), event)
    moved = Selection(moved_since={"orders": ago(60)})

    assert verdicts(spark, topic, orders, selection=moved) == {first: "ORDER_INVERTED"}


def test_records_in_former_partitions_are_not_missed_in_new_ones(
    spark: SparkSession, orders: Service, topic: Topic
) -> None:
    now = orders.now()
    long_ago, hour_ago = now - timedelta(days=3), now - timedelta(hours=1)
    before = [orders.write(age=3 * 24 * 60, key=f"k{n}") for n in range(12)]
    for number, event_id in enumerate(before):
        event = topic.event(id=event_id, key=f"k{number}", time=long_ago)
        topic.publish_at(long_ago, event, partition=number % 3)
    topic.add_partitions(6)
    for partition in range(3):  # like retention
        topic.delete_before(4, partition)
    since = [orders.write(age=60, key=f"n{n}") for n in range(6)]
    for number, event_id in enumerate(since):
        event = topic.event(id=event_id, key=f"n{number}", time=hour_ago)
        topic.publish_at(hour_ago, event, partition=number)

    found = verdicts(spark, topic, orders)

    assert found == dict.fromkeys(before, "BEFORE_TOPIC") | dict.fromkeys(since, "ON_TOPIC")


def test_record_in_another_old_partition_is_not_missed(
    spark: SparkSession, orders: Service, kafka: EmbeddedKafka
) -> None:
    topic = Topic(kafka.bootstrap, logical=TOPIC).make(partitions=2)
    now = orders.now()
    long_ago, hour_ago = now - timedelta(days=3), now - timedelta(hours=1)
    # With three partitions, the partition of these keys existed before, and was not their old one.
    keys = [k for k in map(str, range(99)) if (partition_of(k.encode(), 2), _of_three(k)) == (0, 1)]
    moved = [orders.write(age=3 * 24 * 60, key=key) for key in keys]
    for key, event_id in zip(keys, moved, strict=True):
        event = topic.event(id=event_id, key=key, time=long_ago)
        topic.publish_at(long_ago, event, partition=0)
    before = now - timedelta(days=4)
    other = topic.event(id=orders.write(age=4 * 24 * 60), key=None, time=before)
    topic.publish_at(before, other, partition=1)
    topic.add_partitions(3)
    topic.delete_before(len(keys), 0)  # like retention, partition by partition
    young = [topic.event(id=orders.write(age=60), key=None, time=hour_ago) for _ in range(3)]
    for partition, event in enumerate(young):
        topic.publish_at(hour_ago, event, partition=partition)

    found = verdicts(spark, topic, orders)

    recorded = dict.fromkeys([other.id, *(event.id for event in young)], "ON_TOPIC")
    assert found == dict.fromkeys(moved, "BEFORE_TOPIC") | recorded


def _of_three(key: str) -> int:
    return partition_of(key.encode(), 3)
