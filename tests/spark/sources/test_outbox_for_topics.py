"""Real outboxes beside real topics."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.embedded import EmbeddedKafka
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest, Selection
from shieldtx.reconcile.window import window_of
from spark.compare import topic_transforms
from spark.sources import outbox_for_topics, topics
from spark.sources.jdbc import Databases
from tests.spark.planting import TOPIC, Service
from tests.spark.publishing import Topic


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Topic:
    return Topic(kafka.bootstrap, logical=TOPIC).make(partitions=3)


def verdicts(
    spark: SparkSession, topic: Topic, *services: Service, selection: Selection | None = None
) -> dict[UUID, str]:
    """By event, as the job asks for them."""
    request = ReconcileRequest(
        services=tuple(service.database() for service in services),
        folder=Path("/nowhere"),
        broker=BrokerAccess(
            bootstrap=topic.connection.bootstrap_servers, topic_prefix=topic.prefix
        ),
        selection=selection or Selection(),
    )
    databases = Databases(spark=spark, request=request)
    clocks = databases.clocks()
    reading = topics.read(spark, request, [(TOPIC, TxKind.COMMIT)])
    assert (reading.obstacles, reading.left_out) == ((), ())
    assert reading.records is not None
    rows = topic_transforms.judged(
        outbox_for_topics.outboxes(databases),
        reading.records,
        reading.horizons,
        request=request,
        windows={name: window_of([clock], margin=request.margin) for name, clock in clocks.items()},
    ).collect()
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


def test_an_incremental_run_judges_what_has_moved_and_accuses_nobody_else(
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
