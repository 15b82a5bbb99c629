"""Kafka frozen, restarted, slow; members of a group that die or poll too late."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import kafka.codec
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from shieldtx.brokers.kafka.broker import (
    KafkaBroker,
    KafkaConnection,
    KafkaPublisher,
    KafkaSubscriber,
    KafkaTopics,
)
from shieldtx.brokers.kafka.producer_client import Connect, ProducerSettings
from shieldtx.brokers.partitioning import partition_of
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import BrokerError, BrokerUnavailable
from shieldtx.ports.broker import Delivery, DeliveryOutcome, ReceivedRecord, Record
from tests.support import child_process
from tests.support.kafka_clients import CLIENTS
from tests.support.log_records import logged
from tests.support.paused_process import frozen


@pytest.fixture(scope="module")
def fragile() -> Iterator[EmbeddedKafka]:
    """A broker that tests freeze and restart."""
    with EmbeddedKafka() as server:
        yield server


@pytest.fixture
def connection(fragile: EmbeddedKafka) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=fragile.bootstrap)


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    return CLIENTS[getattr(request, "param", "kafka-python")]


with_each_client = pytest.mark.parametrize("connect", CLIENTS, indirect=True)


@pytest.fixture
def publisher(connection: KafkaConnection, connect: Connect) -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher(connection, ProducerSettings(request_timeout=2), connect=connect)
    yield publisher
    publisher.close()


@pytest.fixture
def topic(connection: KafkaConnection) -> str:
    return make_topic(connection)


def make_topic(connection: KafkaConnection, partitions: int = 1) -> str:
    name = f"t-{uuid.uuid4().hex}"
    admin = KafkaTopics(connection)
    admin.create([name], partitions=partitions, replication=1)
    admin.close()
    return name


def records(topic: str, *values: str) -> list[Record]:
    return [Record(topic=topic, key=b"k", value=value.encode()) for value in values]


def outcomes(deliveries: Sequence[Delivery]) -> set[DeliveryOutcome]:
    return {delivery.outcome for delivery in deliveries}


def read(subscriber: KafkaSubscriber, enough: Callable[[list[str]], bool]) -> list[str]:
    """Poll until the received values are enough."""
    values: list[str] = []
    deadline = time.monotonic() + 40
    while not enough(values):
        assert time.monotonic() < deadline, values
        batch = subscriber.poll(timeout=0.2, limit=500)
        values += [r.value.decode() for r in batch if r.value is not None]
    return values


@with_each_client
def test_records_to_a_frozen_broker_are_unconfirmed(
    fragile: EmbeddedKafka, connection: KafkaConnection, publisher: KafkaPublisher, topic: str
) -> None:
    """The next call after the freeze is acknowledged."""
    assert outcomes(publisher.publish(records(topic, "0"), timeout=20)) == {
        DeliveryOutcome.ACKNOWLEDGED
    }
    unclear = records(topic, "1", "2", "3")
    with frozen(fragile.pid):
        started = time.monotonic()
        ended = publisher.publish(unclear, timeout=1.5)
        took = time.monotonic() - started
        # The client is a new one now, and finds no broker.
        later = publisher.publish(records(topic, "4"), timeout=1)
    assert outcomes(ended) == {DeliveryOutcome.UNCONFIRMED}
    assert 1.4 < took < 3
    assert "1.5 s" in ended[0].reason
    assert outcomes(later) == {DeliveryOutcome.UNSENT}

    again = publisher.publish([*unclear, *records(topic, "4")], timeout=20)
    assert outcomes(again) == {DeliveryOutcome.ACKNOWLEDGED}, again
    subscriber = KafkaBroker(connection).subscriber(f"g-{topic}", [topic])
    try:
        came = read(subscriber, lambda values: "4" in values)
    finally:
        subscriber.close()
    # The first records may have been stored as well: duplicated then, but never out of order.
    assert list(dict.fromkeys(came)) == ["0", "1", "2", "3", "4"]


@with_each_client
def test_metadata_that_take_seconds_only_delay(
    fragile: EmbeddedKafka,
    publisher: KafkaPublisher,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resumptions: list[threading.Timer] = []
    is_missing = KafkaTopics.missing

    def missing(admin: KafkaTopics, topics: Sequence[str]) -> Sequence[str]:
        """Freeze the broker after its answer: the client's request for metadata comes next."""
        found = is_missing(admin, topics)
        freeze = ExitStack()
        freeze.enter_context(frozen(fragile.pid))
        resumptions.append(threading.Timer(1.5, freeze.close))
        resumptions[-1].start()
        return found

    monkeypatch.setattr(KafkaTopics, "missing", missing)
    try:
        ended = publisher.publish(records(topic, "1"), timeout=20)
    finally:
        for resumption in resumptions:
            resumption.join()
    assert len(resumptions) == 1
    assert outcomes(ended) == {DeliveryOutcome.ACKNOWLEDGED}, ended


@pytest.mark.parametrize("client", [name for name in CLIENTS if name.startswith("kafka-python")])
def test_records_after_an_unclear_batch_are_not_sent(
    fragile: EmbeddedKafka, connection: KafkaConnection, topic: str, client: str
) -> None:
    settings = ProducerSettings(batch_bytes=2_000)
    publisher = KafkaPublisher(connection, settings, connect=CLIENTS[client])
    try:
        publisher.publish(records(topic, "warm"), timeout=20)
        with frozen(fragile.pid):
            ended = publisher.publish(records(topic, *["x" * 900] * 10), timeout=1)
    finally:
        publisher.close()
    found = [d.outcome for d in ended]
    unclear = found.count(DeliveryOutcome.UNCONFIRMED)
    assert 1 <= unclear < 10
    assert found == [DeliveryOutcome.UNCONFIRMED] * unclear + [DeliveryOutcome.UNSENT] * (
        10 - unclear
    )


@with_each_client
def test_freeze_shorter_than_the_deadline_only_delays(
    fragile: EmbeddedKafka, connection: KafkaConnection, publisher: KafkaPublisher, topic: str
) -> None:
    publisher.publish(records(topic, "0"), timeout=20)
    ended: list[Delivery] = []
    sending = threading.Thread(
        target=lambda: ended.extend(publisher.publish(records(topic, "1", "2"), timeout=30))
    )
    with frozen(fragile.pid):
        sending.start()
        # Longer than the timeout of a request: the request is repeated on a second connection.
        sending.join(3)
        assert sending.is_alive()
    sending.join(30)
    assert outcomes(ended) == {DeliveryOutcome.ACKNOWLEDGED}
    subscriber = KafkaBroker(connection).subscriber(f"g-{topic}", [topic])
    try:
        came = read(subscriber, lambda values: len(values) >= 3)
        assert list(subscriber.poll(timeout=0.5, limit=10)) == []
    finally:
        subscriber.close()
    # The producer is idempotent: a repeated record is stored once.
    assert came == ["0", "1", "2"]


@with_each_client
def test_restart_within_the_deadline_only_delays(
    fragile: EmbeddedKafka, publisher: KafkaPublisher, topic: str
) -> None:
    publisher.publish(records(topic, "0"), timeout=20)
    fragile.stop()
    ended: list[Delivery] = []
    sending = threading.Thread(
        target=lambda: ended.extend(publisher.publish(records(topic, "1"), timeout=40))
    )
    sending.start()
    fragile.start()
    sending.join(60)
    assert outcomes(ended) == {DeliveryOutcome.ACKNOWLEDGED}


def test_a_frozen_broker_is_unreachable_until_it_resumes(
    fragile: EmbeddedKafka,
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    topic: str,
    eventually: Callable[..., None],
) -> None:
    subscriber = KafkaSubscriber(connection, group=f"g-{topic}", topics=[topic], request_timeout=2)
    try:
        publisher.publish(records(topic, "0"), timeout=20)
        assert read(subscriber, bool) == ["0"]

        def is_away() -> bool:
            try:
                return bool(subscriber.poll(timeout=0.1, limit=10))
            except BrokerUnavailable:
                return True

        with frozen(fragile.pid):
            eventually(is_away, "polls raise BrokerUnavailable", within=30)
        publisher.publish(records(topic, "1"), timeout=20)
        came: list[ReceivedRecord] = []

        def is_back() -> bool:
            try:
                came.extend(subscriber.poll(timeout=0.1, limit=10))
            except BrokerUnavailable:
                return False
            return b"1" in [r.value for r in came]

        eventually(is_back, "polls return records again", within=40)
    finally:
        subscriber.close()


def test_partitions_of_a_killed_member_move_to_another(
    connection: KafkaConnection, publisher: KafkaPublisher, topic: str
) -> None:
    publisher.publish(records(topic, "0", "1"), timeout=20)
    program = f"""
from shieldtx.brokers.kafka.broker import KafkaConnection, KafkaSubscriber
connection = KafkaConnection(bootstrap_servers={connection.bootstrap_servers!r})
member = KafkaSubscriber(connection, group="g-{topic}", topics=["{topic}"], session_timeout=6)
got = []
while len(got) < 2:
    got += member.poll(timeout=1, limit=10)
member.commit(got[:1])
print("mine", flush=True)
while True:
    member.poll(timeout=1, limit=10)
"""
    child = child_process.start([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"mine\n"
        heir = KafkaSubscriber(connection, group=f"g-{topic}", topics=[topic], session_timeout=6)
        try:
            child.kill()
            assert read(heir, bool) == ["1"]
        finally:
            heir.close()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_slow_member_loses_partitions_and_commits_without_error(
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher.publish(records(topic, "0", "1"), timeout=20)
    slow = KafkaSubscriber(
        connection, group=f"g-{topic}", topics=[topic], session_timeout=6, max_poll_interval=1
    )
    heir = KafkaSubscriber(connection, group=f"g-{topic}", topics=[topic])
    try:
        batch: list[ReceivedRecord] = []
        while len(batch) < 2:
            batch += slow.poll(timeout=1, limit=10)
        assert read(heir, lambda values: len(values) == 2) == ["0", "1"]
        with caplog.at_level(logging.WARNING, logger="shieldtx"):
            slow.commit(batch)
        assert len(logged(caplog.records, "offsets_too_late")) == 1
    finally:
        slow.close()
        heir.close()


def test_added_partitions_are_read_by_polls_without_wait(
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    topic: str,
    eventually: Callable[..., None],
) -> None:
    publisher.publish(records(topic, "0"), timeout=20)
    subscriber = KafkaSubscriber(
        connection, group=f"g-{topic}", topics=[topic], metadata_max_age=0.3, join_timeout=1
    )
    partitions: set[int] = set()

    try:
        assert read(subscriber, bool) == ["0"]
        admin = KafkaAdminClient(bootstrap_servers=connection.bootstrap_servers)
        admin.create_partitions({topic: 4})
        admin.wait_for_topics([topic])
        admin.close()
        publisher.close()  # the next client knows the new partitions

        def has_read_all() -> bool:
            # Records keep coming: a member that reads outside of the group must detect the
            # partitions too.
            more = [Record(topic=topic, key=str(n).encode(), value=b"") for n in range(40)]
            assert outcomes(publisher.publish(more, timeout=20)) == {DeliveryOutcome.ACKNOWLEDGED}
            partitions.update(r.partition for r in subscriber.poll(timeout=0, limit=500))
            return len(partitions) == 4

        eventually(has_read_all, "records of every partition are read", within=40)
    finally:
        subscriber.close()


class _Odd(str):
    """The name of a header that is sent as bytes that are not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def test_header_with_a_name_that_is_not_utf_8_is_read(
    connection: KafkaConnection, publisher: KafkaPublisher
) -> None:
    topic = make_topic(connection, partitions=1)
    headers = (("before", b"1"), (_Odd("name"), b"\xff"), ("näme", b"2"))
    records = [
        Record(topic=topic, key=b"1", value=b"one"),
        Record(topic=topic, key=b"2", value=b"two", headers=headers),
        Record(topic=topic, key=b"3", value=b"three", headers=(("after", b"3"),)),
    ]
    assert outcomes(publisher.publish(records, timeout=20)) == {DeliveryOutcome.ACKNOWLEDGED}

    subscriber = KafkaBroker(connection).subscriber(f"g-{topic}", [topic])
    try:
        assert read(subscriber, lambda came: len(came) == 3) == ["one", "two", "three"]
        subscriber.rewind(
            [ReceivedRecord(topic=topic, partition=0, offset=1, key=None, value=None)]
        )
        [odd, last] = subscriber.poll(timeout=10, limit=10)
    finally:
        subscriber.close()
    assert odd.headers == (("before", b"1"), ("\udcff\udcfe", b"\xff"), ("näme", b"2"))
    assert (last.value, last.headers) == (b"three", (("after", b"3"),))


def test_unreadable_record_blocks_only_its_partition(
    connection: KafkaConnection, publisher: KafkaPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(connection, partitions=2)
    # Compressed by a library that this process does not have.
    monkeypatch.setattr(kafka.codec, "has_lz4", lambda: False)
    foreign = Producer(
        {"bootstrap.servers": connection.bootstrap_servers, "compression.type": "lz4"}
    )
    foreign.produce(topic, b"x" * 1000, key=b"odd", partition=partition_of(b"odd", 2))
    assert foreign.flush(20) == 0
    keys = [str(n).encode() for n in range(20)]
    beside = [key for key in keys if partition_of(key, 2) != partition_of(b"odd", 2)]
    good = [Record(topic=topic, key=key, value=key) for key in beside]
    publisher.publish(good, timeout=20)

    subscriber = KafkaBroker(connection).subscriber(f"g-{topic}", [topic])
    came: list[bytes | None] = []
    errors = 0
    deadline = time.monotonic() + 30
    try:
        while errors < 3 or len(came) < len(good):
            assert time.monotonic() < deadline, (errors, came)
            try:
                batch = subscriber.poll(timeout=0.2, limit=3)
            except BrokerError as error:
                errors += "lz4" in str(error)
                continue
            came += [r.value for r in batch]
            subscriber.commit(batch)
    finally:
        subscriber.close()
    assert came == [r.value for r in good]


def test_members_that_leave_close_their_threads_and_sockets(
    connection: KafkaConnection,
    publisher: KafkaPublisher,
    topic: str,
    eventually: Callable[..., None],
) -> None:
    publisher.publish(records(topic, "0"), timeout=20)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names are enough

    threads_before, descriptors_before = threading.active_count(), descriptors()
    for n in range(3):
        subscriber = KafkaSubscriber(connection, group=f"g{n}-{topic}", topics=[topic])
        assert read(subscriber, bool) == ["0"]
        subscriber.close()
        subscriber.close()
    eventually(lambda: threading.active_count() <= threads_before, "the threads end")
    eventually(lambda: descriptors() <= descriptors_before, "the sockets are closed")


def test_address_without_a_broker_is_an_outage_without_threads(
    eventually: Callable[..., None],
) -> None:
    nowhere = KafkaConnection(bootstrap_servers="127.0.0.1:9")
    before = threading.active_count()
    admin = KafkaTopics(nowhere, timeout=0.3)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9") as error:
        admin.describe(["x"])
    assert error.value.__cause__ is not None
    publisher = KafkaPublisher(nowhere)
    ended = publisher.publish(records("x", "1"), timeout=0.3)
    assert outcomes(ended) == {DeliveryOutcome.UNSENT}
    assert "127.0.0.1:9" in ended[0].reason
    eventually(lambda: threading.active_count() <= before, "the threads end")
