"""A poll that fails after the client has fetched: the next poll returns the same records."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from shieldtx.brokers.kafka.assignment import Pauses
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection, KafkaSubscriber
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import BrokerError, BrokerUnavailable
from tests.support.log_records import logged

VALUES = [str(n).encode() for n in range(20)]


@pytest.fixture
def subscriber(kafka: EmbeddedKafka) -> Iterator[KafkaSubscriber]:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    topics, name = KafkaBroker(connection).topics(), f"t{uuid.uuid4().hex[:8]}"
    topics.create([name], partitions=1, replication=1)
    topics.close()
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in VALUES:
        producer.produce(name, value)
    producer.flush(20)
    subscriber = KafkaSubscriber(connection, group=name, topics=[name])
    yield subscriber
    subscriber.close()


@pytest.mark.parametrize(
    "error", [BrokerUnavailable("away"), MemoryError(), KeyboardInterrupt()], ids=repr
)
def test_records_of_a_poll_that_failed_come_again(
    subscriber: KafkaSubscriber, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    fetched: list[Any] = []
    without_paused = Pauses.without_paused

    def fail_once(self: Pauses, consumer: Any, found: dict[Any, list[Any]]) -> Any:
        if found and not fetched:
            fetched.extend(found)
            raise error
        return without_paused(self, consumer, found)

    monkeypatch.setattr(Pauses, "without_paused", fail_once)
    received: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(received) < len(VALUES) and time.monotonic() < deadline:
        try:
            records = subscriber.poll(timeout=1, limit=10)
        except (BrokerError, KeyboardInterrupt):
            continue
        received += [record.value for record in records]
    assert fetched
    assert received == VALUES


def test_assigned_partitions_are_logged_once(
    subscriber: KafkaSubscriber, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shieldtx")
    deadline = time.monotonic() + 60
    received = 0
    while received < len(VALUES) and time.monotonic() < deadline:
        received += len(subscriber.poll(timeout=1, limit=3))
    (assigned,) = logged(caplog.records, "partitions_assigned")
    topics = cast("list[str]", assigned["topics"])
    (topic,) = topics
    assert assigned == {
        "group": topic,
        "topics": [topic],
        "partitions": [f"{topic}[0]"],
        "count": 1,
    }
