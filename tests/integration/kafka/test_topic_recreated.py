"""Topics that are deleted and recreated under the same name while a group reads them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka.admin import AdminClient

from shieldtx.brokers.kafka.broker import (
    KafkaBroker,
    KafkaConnection,
    KafkaPublisher,
    KafkaSubscriber,
    KafkaTopics,
)
from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import DeliveryOutcome, Record

WITHIN_S = 30.0


@pytest.fixture
def connection(kafka: EmbeddedKafka) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=kafka.bootstrap)


@pytest.fixture
def publisher(connection: KafkaConnection) -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher(connection)
    yield publisher
    publisher.close()


@pytest.fixture
def topics(connection: KafkaConnection) -> list[str]:
    names = [f"t-{uuid.uuid4().hex}" for _ in range(2)]
    make(connection, names)
    return names


@pytest.fixture
def subscriber(connection: KafkaConnection, topics: list[str]) -> Iterator[KafkaSubscriber]:
    subscriber = KafkaBroker(connection).subscriber(f"g-{topics[0]}", topics)
    yield subscriber
    subscriber.close()


def make(connection: KafkaConnection, names: Sequence[str]) -> None:
    admin = KafkaTopics(connection)
    admin.create(names, partitions=1, replication=1)
    admin.close()


def recreate(connection: KafkaConnection, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WITHIN_S)
    make(connection, [topic])


def publish(publisher: KafkaPublisher, topic: str, values: Sequence[str]) -> None:
    records = [Record(topic=topic, key=b"k", value=value.encode()) for value in values]
    ended = publisher.publish(records, timeout=20)
    assert {delivery.outcome for delivery in ended} == {DeliveryOutcome.ACKNOWLEDGED}


def read(subscriber: KafkaSubscriber, count: int) -> list[str]:
    """Read and commit until the given number of values is read."""
    values: list[str] = []
    deadline = time.monotonic() + WITHIN_S
    while len(values) < count:
        assert time.monotonic() < deadline, values
        batch = subscriber.poll(timeout=0.2, limit=500)
        subscriber.commit(batch)
        values += [r.value.decode() for r in batch if r.value is not None]
    return values


def test_topic_recreated_during_a_handler_is_read_from_start(
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    subscriber: KafkaSubscriber,
    topics: list[str],
) -> None:
    topic, other = topics
    old = [f"old-{n}" for n in range(10)]
    publish(publisher, topic, old)
    assert read(subscriber, 10) == old
    recreate(connection, topic)
    # The member's offset in the old topic also exists in the new topic.
    new = [f"new-{n}" for n in range(30)]
    publish(publisher, topic, new)
    publish(publisher, other, ["beside"])
    # A slow handler: no poll has run since the recreation.
    time.sleep(1)
    came = read(subscriber, 31)
    assert [value for value in came if value != "beside"] == new
    assert came.count("beside") == 1


def test_a_topic_that_was_missing_is_read_from_its_start(
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    subscriber: KafkaSubscriber,
    topics: list[str],
) -> None:
    topic, other = topics
    publish(publisher, topic, ["old"])
    assert read(subscriber, 1) == ["old"]
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WITHIN_S)
    publish(publisher, other, ["meanwhile"])
    assert read(subscriber, 1) == ["meanwhile"]
    make(connection, [topic])
    publish(publisher, topic, ["new-0", "new-1", "new-2"])
    assert read(subscriber, 3) == ["new-0", "new-1", "new-2"]


def test_reason_of_unacknowledged_records_has_the_brokers_answer(
    connection: KafkaConnection, publisher: KafkaPublisher, topics: list[str]
) -> None:
    topic = topics[0]
    publish(publisher, topic, ["known"])
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(WITHIN_S)
    record = Record(topic=topic, key=b"k", value=b"late")
    [first] = publisher.publish([record], timeout=1.5)
    assert first.outcome is DeliveryOutcome.UNCONFIRMED
    assert "not acknowledged within 1.5 s" in first.reason
    assert "UnknownTopicOrPartitionError" in first.reason
    [second] = publisher.publish([record], timeout=10)
    assert second.outcome is DeliveryOutcome.REFUSED
    assert f"topic {topic} does not exist" in second.reason


def test_a_recreated_topic_has_another_id_in_the_same_cluster(
    connection: KafkaConnection, publisher: KafkaPublisher, topics: list[str]
) -> None:
    topic, other = topics
    publish(publisher, topic, ["a", "b", "c"])
    with TopicOffsetReader(connection) as reader:
        before, cluster = reader.ends([topic, other, "t-none"]), reader.cluster_id()
    recreate(connection, topic)
    with TopicOffsetReader(connection) as reader:
        after, cluster_after = reader.ends([topic, other, "t-none"]), reader.cluster_id()

    assert cluster
    assert cluster_after == cluster
    assert (before[topic].ends, after[topic].ends) == ({0: 3}, {0: 0})
    assert before[topic].topic_id != after[topic].topic_id
    assert before[other] == after[other]
    assert before["t-none"] is after["t-none"] is None
