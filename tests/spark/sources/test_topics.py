"""Tests of what a run knows about the topics, and what it reports about them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kafka.admin import ACLOperation

from shieldtx.domain.states import TxKind
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.request import (
    BrokerAccess,
    ReconcileRequest,
    Selection,
    ServiceDatabase,
)
from spark.sources import topics
from spark.sources.topic_completeness import EVERYTHING, WHOLE
from tests.integration.kafka.test_accounts import PASSWORD, Guarded, guarded  # noqa: F401
from tests.spark.publishing import Topic

SERVICES = ("orders", "stock")
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def request_of(bootstrap: str, **changes) -> ReconcileRequest:
    broker = BrokerAccess(bootstrap=bootstrap, topic_prefix="t.")
    services = tuple(ServiceDatabase(name=name, url="postgresql://none") for name in SERVICES)
    fields = {"services": services, "folder": Path("/nowhere"), "broker": broker}
    return ReconcileRequest(**{**fields, **changes})


def read(spark, *made: Topic, **changes) -> topics.Reading:
    request = request_of(made[0].connection.bootstrap_servers, **changes)
    return topics.read(spark, request, [(topic.logical, topic.kind) for topic in made])


def horizons(reading: topics.Reading):
    """Return horizons by partition."""
    rows = reading.horizons.collect()
    return {
        row.partition: row.complete_since and row.complete_since.astimezone(UTC) for row in rows
    }


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Topic:
    return Topic(kafka.bootstrap).make(partitions=2)


def test_the_records_of_the_services_are_kept_and_others_counted(spark, topic):
    event = topic.event()
    topic.publish(event, event, topic.event(source="stock"), topic.event(source="bank"))
    with topic.producer() as producer:
        producer.send(topic.name, b"x", partition=1)
    reading = read(spark, topic)
    assert sorted(row.source for row in reading.records.collect()) == ["orders", "orders", "stock"]
    assert reading.obstacles == ()
    assert reading.left_out == (
        f"1 records of {topic.logical} (COMMIT) are not events: ce_id is missing",
        f"1 records of {topic.logical} (COMMIT) are of 'bank', which is none of these services",
    )
    assert reading.observed.topics[topic.name].writers == {"orders", "stock"}


def test_what_is_judged_is_read_once(spark, topic):
    topic.publish(topic.event())
    reading = read(spark, topic)
    topic.publish(topic.event())
    topic.delete_before(1)
    assert reading.records.count() == 1


def test_a_partition_that_never_lost_a_record_is_complete(spark, topic):
    topic.publish(topic.event())
    assert horizons(read(spark, topic)) == {0: EVERYTHING, 1: EVERYTHING, WHOLE: EVERYTHING}


def test_truncated_partition_is_complete_from_first_own_record(spark, kafka):
    topic = Topic(kafka.bootstrap).make()
    topic.publish(*[topic.event() for _ in range(3)])
    with topic.producer() as producer:
        producer.send(topic.name, b"x", partition=0, timestamp_ms=0)
    topic.publish(topic.event())
    topic.delete_before(3)
    reading = read(spark, topic)
    (row,) = reading.records.collect()
    sent_at = row.sent_at.astimezone(UTC)
    assert horizons(reading) == {0: sent_at, WHOLE: sent_at}


def test_what_an_emptied_partition_held_is_not_known(spark, kafka):
    topic = Topic(kafka.bootstrap).make()
    topic.publish(topic.event())
    topic.delete_before(1)
    reading = read(spark, topic)
    assert horizons(reading) == {0: None, WHOLE: None}
    assert "has lost its beginning and holds no record of these services" in reading.obstacles[0]


def test_records_deleted_during_the_read_move_the_beginning(spark, kafka, monkeypatch):
    topic = Topic(kafka.bootstrap).make()
    topic.publish(*[topic.event() for _ in range(10)])
    frame_of = topics.frame_of

    def after_the_cut(*arguments):
        topic.delete_before(6)
        return frame_of(*arguments, part=4)

    monkeypatch.setattr(topics, "frame_of", after_the_cut)
    reading = read(spark, topic)
    rows = reading.records.orderBy("offset").collect()
    assert [row.offset for row in rows] == [6, 7, 8, 9]
    assert horizons(reading)[0] == rows[0].sent_at.astimezone(UTC)


def test_an_incremental_run_reads_what_is_young(spark, kafka):
    topic = Topic(kafka.bootstrap).make()
    topic.publish(topic.event())
    now = datetime.now(UTC).replace(microsecond=0)
    late = dict.fromkeys(SERVICES, now + timedelta(hours=1))
    young = read(spark, topic, selection=Selection(moved_since=late))
    assert young.records.count() == 0
    assert horizons(young)[0] == now + timedelta(minutes=30)
    early = dict.fromkeys(SERVICES, now)
    assert read(spark, topic, selection=Selection(moved_since=early)).records.count() == 1
    of_one = {"orders": now + timedelta(hours=1)}
    assert read(spark, topic, selection=Selection(moved_since=of_one)).records.count() == 1


def test_a_missing_topic_could_not_be_judged_and_the_others_are(spark, topic):
    topic.publish(topic.event())
    missing = Topic(topic.connection.bootstrap_servers)
    reading = read(spark, topic, missing)
    assert reading.records.count() == 1
    (obstacle,) = reading.obstacles
    assert f"topic {missing.name} could not be read: no topic {missing.name} at" in obstacle
    alone = read(spark, missing)
    assert alone.records is None
    assert len(alone.obstacles) == 1


def test_a_compacted_topic_could_not_be_judged(spark, kafka):
    compacted = Topic(kafka.bootstrap).make(cleanup_policy="compact")
    reading = read(spark, compacted)
    assert reading.records is None
    assert f"topic {compacted.name} is compacted" in reading.obstacles[0]


def test_an_address_without_a_broker_could_not_be_judged(spark):
    reading = topics.read(spark, request_of("127.0.0.1:9"), [("orders", TxKind.COMMIT)])
    assert reading.records is None
    assert reading.horizons.count() == 0
    (obstacle,) = reading.obstacles
    assert obstacle.startswith("the topics could not be read: Kafka at 127.0.0.1:9")


def test_settings_that_cannot_work_are_reported(spark):
    access = BrokerAccess(bootstrap="kafka:9092", security_protocol="SASL_SSL")
    with pytest.raises(ConfigurationError):
        topics.connection_of(access)
    reading = topics.read(spark, request_of("", broker=access), [("orders", TxKind.COMMIT)])
    assert "topics.sasl_mechanism: not set; use one of PLAIN, " in reading.obstacles[0]


def test_topic_of_a_broker_that_dies_is_not_judged(spark, monkeypatch):
    with EmbeddedKafka() as broker:
        topic = Topic(broker.bootstrap).make()
        topic.publish(topic.event())
        frame_of = topics.frame_of

        def after_the_death(*arguments):
            broker.kill()
            return frame_of(*arguments)

        monkeypatch.setattr(topics, "frame_of", after_the_death)
        reading = read(spark, topic)
    assert reading.records is None
    assert f"the topics could not be read: Kafka at {broker.bootstrap}" in reading.obstacles[0]


def account(guarded: Guarded, password: str) -> BrokerAccess:  # noqa: F811
    return BrokerAccess(
        bootstrap=guarded.door,
        topic_prefix="t.",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="shop",
        sasl_password=password,
    )


def read_as(spark, access: BrokerAccess, topic: Topic) -> topics.Reading:
    return topics.read(spark, request_of("", broker=access), [(topic.logical, topic.kind)])


def test_the_password_of_the_account_shows_in_no_plan(spark, guarded, monkeypatch):  # noqa: F811
    topic = Topic(guarded.server.bootstrap).make()
    guarded.allow(topic.name, ACLOperation.READ, ACLOperation.DESCRIBE)
    topic.publish(topic.event())
    frames = []
    frame_of = topics.frame_of

    def seen(*arguments):
        frames.append(frame_of(*arguments))
        return frames[0]

    monkeypatch.setattr(topics, "frame_of", seen)
    access = account(guarded, PASSWORD)
    reading = read_as(spark, access, topic)
    assert reading.records.count() == 1
    shown = [repr(reading), repr(access), str(spark.sparkContext.getConf().getAll())]
    for frame in (*frames, reading.records):
        execution = frame._jdf.queryExecution()
        shown += [repr(frame), execution.toString(), execution.stringWithStats()]
    assert "shieldtx_records" in "".join(shown)
    assert not [text for text in shown if PASSWORD in text]


def test_a_wrong_password_could_not_be_judged_and_is_not_shown(spark, guarded):  # noqa: F811
    wrong = account(guarded, "marker-of-a-secret")
    reading = read_as(spark, wrong, Topic(guarded.server.bootstrap))
    assert reading.records is None
    # For one topic or for all: a broker may close the connection before it gives a reason.
    assert f"could not be read: Kafka at {guarded.door}" in reading.obstacles[0]
    assert "marker-of-a-secret" not in repr(reading)


def test_topic_that_the_account_may_not_read_is_not_judged(spark, guarded):  # noqa: F811
    topic = Topic(guarded.server.bootstrap).make()
    topic.publish(topic.event())
    reading = read_as(spark, account(guarded, PASSWORD), topic)
    assert reading.records is None
    assert topic.name in reading.obstacles[0]
    guarded.allow(topic.name, ACLOperation.DESCRIBE)
    reading = read_as(spark, account(guarded, PASSWORD), topic)
    assert reading.records is None
    assert topic.name in reading.obstacles[0]
