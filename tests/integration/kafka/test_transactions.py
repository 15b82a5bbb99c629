"""Transactions of other producers on the topics that a group reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection, KafkaSubscriber
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import ReceivedRecord
from tests.conftest import Eventually


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> str:
    topics = KafkaBroker(KafkaConnection(bootstrap_servers=kafka.bootstrap)).topics()
    name = f"t{uuid.uuid4().hex[:8]}"
    topics.create([name], partitions=1, replication=1)
    topics.close()
    return name


@pytest.fixture
def subscriber(kafka: EmbeddedKafka, topic: str) -> Iterator[KafkaSubscriber]:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    subscriber = KafkaSubscriber(connection, group=topic, topics=[topic])
    yield subscriber
    subscriber.close()


@pytest.fixture
def producer(kafka: EmbeddedKafka, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    return producer


def write(producer: Producer, topic: str, *values: str) -> None:
    """Begin a transaction, and write its records into the log."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(20)


def test_records_of_an_aborted_transaction_are_not_received(
    subscriber: KafkaSubscriber, producer: Producer, topic: str, eventually: Eventually
) -> None:
    received: list[ReceivedRecord] = []

    def catch_up() -> bool:
        received.extend(subscriber.poll(timeout=0.1, limit=10))
        return subscriber.has_caught_up()

    write(producer, topic, "never happened")
    producer.abort_transaction(20)
    write(producer, topic, "one", "two")
    producer.commit_transaction(20)
    # The log ends with records that consumers do not receive, and with markers.
    write(producer, topic, "never happened", "nor this")
    producer.abort_transaction(20)
    eventually(catch_up, "the member has caught up, behind the markers too", within=30)
    assert [(record.value, record.offset) for record in received] == [(b"one", 2), (b"two", 3)]
    subscriber.commit(received)

    write(producer, topic, "open")
    eventually(catch_up, "what is not committed is not waited for", within=30)
    assert len(received) == 2
    producer.commit_transaction(20)
    eventually(lambda: catch_up() and len(received) == 3, "it is received", within=30)


def test_record_is_received_once_with_markers_between_batches(
    subscriber: KafkaSubscriber, producer: Producer, topic: str, eventually: Eventually
) -> None:
    values = [f"{number}" for number in range(30)]
    for value in values:
        write(producer, topic, f"aborted {value}")
        producer.abort_transaction(20)
        write(producer, topic, value)
        producer.commit_transaction(20)
    received: list[bytes | None] = []

    def catch_up() -> bool:
        batch = subscriber.poll(timeout=0.1, limit=7)
        received.extend(record.value for record in batch)
        subscriber.commit(batch)
        return subscriber.has_caught_up()

    eventually(catch_up, "the member has caught up", within=30)
    assert received == [value.encode() for value in values]
