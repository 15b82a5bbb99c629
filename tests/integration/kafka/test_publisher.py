"""Refusals of Kafka are assigned to their records: only the rejected records fail."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatchBuilder

from shieldtx.brokers.kafka.broker import KafkaConnection, KafkaPublisher
from shieldtx.brokers.kafka.producer_client import (
    Connect,
    ProducerClient,
    ProduceRound,
    ProducerSettings,
)
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record
from tests.support.kafka_clients import CLIENTS


@pytest.fixture
def connection(kafka: EmbeddedKafka) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=kafka.bootstrap)


@pytest.fixture(params=CLIENTS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CLIENTS[request.param]


@pytest.fixture
def publisher(connection: KafkaConnection, connect: Connect) -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher(connection, connect=connect)
    yield publisher
    publisher.close()


@pytest.fixture
def make_topic(kafka: EmbeddedKafka) -> Iterator[Callable[..., str]]:
    """Make a topic with settings of its own."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex}"
        described = {
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": {key.replace("_", "."): value for key, value in configs.items()},
        }
        admin.create_topics({name: described}, wait_for_metadata=True)
        return name

    yield make
    admin.close()


def log_of(kafka: EmbeddedKafka, topic: str) -> list[str]:
    """Read a whole topic with the bare client, partition by partition."""
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap)
    try:
        places = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(places)
        came: dict[TopicPartition, list[str]] = {place: [] for place in places}
        while any(consumer.position(place) < ends[place] for place in places):
            for place, records in consumer.poll(timeout_ms=200).items():
                came[place] += [r.value.decode() for r in records]
        return [value for place in places for value in came[place]]
    finally:
        consumer.close()


def record(topic: str, value: str, key: str | None = "k") -> Record:
    return Record(topic=topic, key=None if key is None else key.encode(), value=value.encode())


def outcomes(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.outcome.name for delivery in deliveries]


def firsts(values: Sequence[str]) -> list[str]:
    """Drop the duplicates, as a consumer does."""
    return list(dict.fromkeys(values))


def test_a_record_above_the_topics_limit_rejects_no_other(
    kafka: EmbeddedKafka, publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    narrow, wide = make_topic(partitions=2, max_message_bytes="20000"), make_topic()
    sent: list[Record] = []
    for n in range(200):
        sent.append(record(narrow, f"{n:03}", key=f"key-{n % 10}"))
        sent.append(record(wide, f"{n:03}", key="w"))
    # The rejected record: only the broker has the limit of its topic.
    sent[122] = record(narrow, "x" * 30_000, key="key-1")
    # Accepted, though larger than a batch.
    sent[301] = record(wide, "x" * 1_000_000, key="w")
    ended = publisher.publish(sent, timeout=30)
    assert {i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.REJECTED} == {122}
    behind = {i for i in range(123, 400) if sent[i].key == b"key-1"}
    assert {i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.DEFERRED} == behind
    assert all("key was rejected" in ended[i].reason for i in behind)
    rest = [i for i in range(400) if i not in behind | {122}]
    assert {ended[i].outcome for i in rest} == {DeliveryOutcome.ACKNOWLEDGED}

    written = [sent[i].value.decode() for i in rest]
    stored = firsts(log_of(kafka, narrow))
    for key in range(10):
        mine = [v for v in stored if int(v) % 10 == key]
        assert mine == sorted(mine)
    assert set(stored) == {v for v, i in zip(written, rest, strict=True) if i % 2 == 0}
    assert firsts(log_of(kafka, wide)) == [v for v, i in zip(written, rest, strict=True) if i % 2]


def test_several_rejected_records_are_all_found(
    kafka: EmbeddedKafka, publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    narrow = make_topic(partitions=3, max_message_bytes="20000")
    too_large = {0, 7, 8, 63, 99}
    sent = [
        record(narrow, "x" * 30_000 if n in too_large else f"{n}", key=f"key-{n}")
        for n in range(100)
    ]
    ended = publisher.publish(sent, timeout=30)
    assert {i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.REJECTED} == too_large
    assert {d.outcome for d in ended} == {DeliveryOutcome.REJECTED, DeliveryOutcome.ACKNOWLEDGED}
    assert set(log_of(kafka, narrow)) == {f"{n}" for n in range(100) if n not in too_large}


def test_records_that_fit_are_stored_where_their_batch_does_not(
    kafka: EmbeddedKafka, publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    narrow = make_topic(max_message_bytes="20000")
    sent = [record(narrow, f"{n:03}" + "x" * 1_000) for n in range(150)]
    ended = publisher.publish(sent, timeout=30)
    assert {(d.outcome, d.reason) for d in ended} == {(DeliveryOutcome.ACKNOWLEDGED, "")}
    assert [v[:3] for v in log_of(kafka, narrow)] == [f"{n:03}" for n in range(150)]


def test_batch_that_fails_during_the_handover_is_divided(
    kafka: EmbeddedKafka,
    connection: KafkaConnection,
    connect: Connect,
    make_topic: Callable[..., str],
) -> None:
    narrow = make_topic(partitions=2, max_message_bytes="100000")
    sent = [record(narrow, f"{n:04}" + "x" * 5_000, key=f"key-{n % 10}") for n in range(1_000)]
    sent[700] = record(narrow, "x" * 120_000, key="key-0")
    publisher = KafkaPublisher(connection, connect=_unhurried(connect))
    try:
        ended = publisher.publish(sent, timeout=60)
    finally:
        publisher.close()
    assert [i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.REJECTED] == [700]
    behind = list(range(710, 1_000, 10))
    assert [i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.DEFERRED] == behind
    assert outcomes(ended).count("ACKNOWLEDGED") == 1_000 - 1 - len(behind)
    stored = [int(value[:4]) for value in firsts(log_of(kafka, narrow))]
    for key in range(10):
        mine = [n for n in stored if n % 10 == key]
        assert mine == [n for n in range(key, 1_000, 10) if n not in {700, *behind}]


def test_record_taken_while_its_client_ends_does_not_block(
    connection: KafkaConnection, make_topic: Callable[..., str]
) -> None:
    narrow = make_topic(max_message_bytes="20000")
    # The moment is short: about one round in ten meets it.
    for _ in range(40):
        client = CLIENTS["confluent-kafka"](connection, ProducerSettings(), within=5)
        try:
            assert client.partition_count(narrow, within=5) == 1
            round_ = client.round()
            assert round_.take(record(narrow, "x" * 300_000), 0)
            small = record(narrow, "y")
            with suppress(KafkaError):
                while round_.take(small, 0):
                    continue
            began = time.monotonic()
            ends = round_.send(began + 20)
        finally:
            client.discard()
        assert time.monotonic() - began < 5
        assert all(end.is_done for end in ends)


def _unhurried(connect: Connect) -> Connect:
    """Leave a broker time to answer a full batch while later records are handed over."""

    class Unhurried:
        def __init__(self, round_: ProduceRound) -> None:
            self._round = round_
            self._taken = 0
            self.send = round_.send

        def take(self, record: Record, partition: int) -> bool:
            self._taken += 1
            if self._taken % 100 == 0:
                time.sleep(0.02)
            return self._round.take(record, partition)

    def connected(
        connection: KafkaConnection, settings: ProducerSettings, *, within: float
    ) -> ProducerClient:
        client = connect(connection, settings, within=within)
        begin = client.round
        client.round = lambda: Unhurried(begin())  # type: ignore[method-assign]
        return client

    return connected


def test_a_keyless_record_in_a_compacted_topic_is_rejected_alone(
    kafka: EmbeddedKafka, publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    compacted = make_topic(cleanup_policy="compact")
    sent = [record(compacted, str(n), key=None if n in {3, 6} else "k") for n in range(8)]
    ended = publisher.publish(sent, timeout=30)
    assert [i for i, d in enumerate(ended) if d.outcome is DeliveryOutcome.REJECTED] == [3, 6]
    # librdkafka does not report the rest of the broker's answer.
    assert "key" in ended[3].reason or "INVALID_RECORD" in ended[3].reason
    assert firsts(log_of(kafka, compacted)) == ["0", "1", "2", "4", "5", "7"]


@pytest.mark.parametrize(
    # librdkafka reads a clock that Python cannot set.
    "connect",
    [connect for name, connect in CLIENTS.items() if name != "confluent-kafka"],
)
def test_clock_refused_by_the_broker_is_an_outage(
    kafka: EmbeddedKafka,
    publisher: KafkaPublisher,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The effect of a clock hours ahead on a broker with Kafka's defaults.
    strict = make_topic(message_timestamp_before_max_ms="60000")
    right, append = time.time, DefaultRecordBatchBuilder.append

    def an_hour_behind() -> float:
        return right() - 3600

    monkeypatch.setattr(time, "time", an_hour_behind)
    # The client bound the clock when it was imported.
    looks = tuple(an_hour_behind if given is right else given for given in append.__defaults__)
    monkeypatch.setattr(append, "__defaults__", looks)
    ended = publisher.publish([record(strict, str(n)) for n in range(3)], timeout=30)
    assert {d.outcome for d in ended} == {DeliveryOutcome.UNCONFIRMED}
    assert "InvalidTimestamp" in ended[0].reason
    assert log_of(kafka, strict) == []


def test_a_call_of_many_batches_keeps_the_order_of_a_partition(
    kafka: EmbeddedKafka,
    connection: KafkaConnection,
    connect: Connect,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    publisher = KafkaPublisher(connection, ProducerSettings(batch_bytes=4_000), connect=connect)
    sent = [record(topic, f"{n}" + "x" * (n % 7) * 900, key=f"key-{n}") for n in range(300)]
    try:
        ended = publisher.publish(sent, timeout=60)
    finally:
        publisher.close()
    assert {d.outcome for d in ended} == {DeliveryOutcome.ACKNOWLEDGED}
    assert [v.rstrip("x") for v in log_of(kafka, topic)] == [f"{n}" for n in range(300)]


def test_compressed_records_arrive(
    kafka: EmbeddedKafka,
    connection: KafkaConnection,
    connect: Connect,
    make_topic: Callable[..., str],
) -> None:
    topic = make_topic()
    publisher = KafkaPublisher(connection, ProducerSettings(compression="gzip"), connect=connect)
    try:
        sent = [record(topic, f"{n:03}" * 300) for n in range(100)]
        assert set(outcomes(publisher.publish(sent, timeout=30))) == {"ACKNOWLEDGED"}
    finally:
        publisher.close()
    assert log_of(kafka, topic) == [f"{n:03}" * 300 for n in range(100)]


@pytest.mark.parametrize("connect", [CLIENTS["kafka-python"]])  # this client is not asked
@pytest.mark.parametrize("name", ["", ".", "..", "with space", "\u00fc", "x" * 250, "a/b"])
def test_a_name_that_no_topic_can_have_is_rejected(publisher: KafkaPublisher, name: str) -> None:
    assert outcomes(publisher.publish([record(name, "x")], timeout=30)) == ["REJECTED"]


def test_topic_deleted_between_two_calls_is_refused(
    kafka: EmbeddedKafka,
    publisher: KafkaPublisher,
    make_topic: Callable[..., str],
    eventually: Callable[..., None],
) -> None:
    doomed, kept = make_topic(), make_topic()
    sent = [record(doomed, "x"), record(kept, "y")]
    assert outcomes(publisher.publish(sent, timeout=30)) == ["ACKNOWLEDGED"] * 2
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_topics([doomed])
    admin.close()
    ended: list[str] = []

    def is_noticed() -> bool:
        ended[:] = outcomes(publisher.publish(sent, timeout=3))
        return ended[0] != "ACKNOWLEDGED"

    # The broker runs on for a moment, and the outcome is unknown for a client without the new
    # metadata.
    eventually(is_noticed, "the topic is gone")
    assert ended[0] in {"UNCONFIRMED", "REFUSED"}
    assert ended[1] in {"ACKNOWLEDGED", "UNSENT"}
    assert outcomes(publisher.publish(sent, timeout=30)) == ["REFUSED", "ACKNOWLEDGED"]


def test_a_call_without_time_sends_nothing(
    publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    assert outcomes(publisher.publish([record(topic, "x")], timeout=0)) == ["UNSENT"]
    assert outcomes(publisher.publish([record(topic, "x")], timeout=30)) == ["ACKNOWLEDGED"]


def test_replaced_clients_leave_no_thread_and_no_socket(
    connection: KafkaConnection,
    connect: Connect,
    make_topic: Callable[..., str],
    eventually: Callable[..., None],
) -> None:
    compacted = make_topic(cleanup_policy="compact")

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names are enough

    threads_before, descriptors_before = threading.active_count(), descriptors()
    publisher = KafkaPublisher(connection, connect=connect)
    for _ in range(10):
        ended = publisher.publish([record(compacted, "x", key=None)], timeout=30)
        assert outcomes(ended) == ["REJECTED"]
    publisher.close()
    publisher.close()
    eventually(lambda: threading.active_count() <= threads_before, "the threads end")
    eventually(lambda: descriptors() <= descriptors_before, "the sockets are closed")


def test_a_closed_publisher_may_be_used_again(
    publisher: KafkaPublisher, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    for _ in range(2):
        assert outcomes(publisher.publish([record(topic, "x")], timeout=30)) == ["ACKNOWLEDGED"]
        publisher.close()
