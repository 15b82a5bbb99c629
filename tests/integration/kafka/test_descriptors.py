"""A failed connection to Kafka leaves no socket and no thread."""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from shieldtx.brokers.kafka import confluent_producer, connection, kafka_python_producer
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.consumer_patches import Consumer
from shieldtx.brokers.kafka.network_patches import Network
from shieldtx.brokers.kafka.producer_client import Connect, ProducerSettings
from shieldtx.brokers.kafka.publisher import KafkaPublisher
from shieldtx.brokers.kafka.subscriber import KafkaSubscriber
from shieldtx.brokers.kafka.topic_admin import KafkaTopics
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import BrokerError, BrokerUnavailable
from shieldtx.ports.broker import DeliveryOutcome, Record
from tests.conftest import KAFKA_THREADS, Eventually, threads_named
from tests.support.kafka_clients import CLIENTS
from tests.support.paused_process import frozen
from tests.support.unusable_ports import hanging_up

Open = Callable[[KafkaConnection], object]

CONNECTING: dict[str, Open] = {
    "producer": lambda to: kafka_python_producer.connect(to, ProducerSettings(), within=0.3),
    "confluent producer": lambda to: confluent_producer.connect(to, ProducerSettings(), within=0.3),
    "consumer": lambda to: to.open(Consumer, within=0.3, group_id="g", metrics_enabled=False),
    "admin": lambda to: to.open(KafkaAdminClient, within=0.3),
}


@pytest.fixture(params=["refuses", "is silent", "is silent over TLS", "speaks no TLS"])
def unusable(request: pytest.FixtureRequest) -> Iterator[KafkaConnection]:
    """An address without a usable Kafka."""
    if request.param == "speaks no TLS":
        with hanging_up(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
            yield KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}", security_protocol="SSL")
        return
    protocol = "SSL" if request.param == "is silent over TLS" else "PLAINTEXT"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        connection = KafkaConnection(bootstrap_servers=address, security_protocol=protocol)
        if request.param != "refuses":
            yield connection
    if request.param == "refuses":
        yield connection


@pytest.fixture
def rare_collector() -> Iterator[None]:
    """Run the garbage collector only where a test asks for it, almost as in a worker."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def without_collector(rare_collector: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never run the garbage collector: what has to be closed is closed without it."""
    monkeypatch.setattr(connection, "_free_failed_clients", lambda: None)


def descriptors() -> int:
    """Count the open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def all_taken() -> Iterator[None]:
    """Let this process have no descriptor left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 1, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)


@pytest.mark.parametrize("kind", CONNECTING)
@pytest.mark.usefixtures("without_collector")
def test_a_failed_connection_leaves_no_descriptor_and_no_thread(
    kind: str, unusable: KafkaConnection, eventually: Eventually
) -> None:
    def attempt() -> None:
        with pytest.raises(BrokerError):
            CONNECTING[kind](unusable)

    attempt()  # objects that a first attempt loads stay
    before, threads = descriptors(), threading.active_count()
    for _ in range(4):
        attempt()
    eventually(lambda: descriptors() <= before, f"at most {before} descriptors")
    eventually(lambda: threading.active_count() <= threads, f"at most {threads} threads")


@pytest.mark.parametrize("unusable", ["refuses"], indirect=True)
@pytest.mark.parametrize("kind", [k for k in CONNECTING if k != "confluent producer"])
@pytest.mark.usefixtures("rare_collector")
def test_attempts_that_fail_do_not_pile_up_in_memory(
    kind: str, unusable: KafkaConnection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # records that pytest captures refer to the clients
    for _ in range(4):
        with pytest.raises(BrokerError):
            CONNECTING[kind](unusable)
    # The next attempt frees the client of the last attempt.
    assert sum(isinstance(found, Network) for found in gc.get_objects()) <= 1


@pytest.mark.parametrize("unusable", ["refuses"], indirect=True)
@pytest.mark.parametrize("kind", CONNECTING)
def test_a_process_without_free_descriptors_gets_an_error(
    kind: str, unusable: KafkaConnection
) -> None:
    with suppress(BrokerError):
        CONNECTING[kind](unusable)  # files that a first attempt loads are loaded
    with all_taken(), pytest.raises(BrokerUnavailable, match=r"Too many open files.*ulimit -n"):
        CONNECTING[kind](unusable)


@pytest.fixture(scope="module")
def fragile() -> Iterator[EmbeddedKafka]:
    """A broker that tests freeze."""
    with EmbeddedKafka() as server:
        yield server


@pytest.fixture
def topic(fragile: EmbeddedKafka) -> str:
    topics = KafkaTopics(KafkaConnection(bootstrap_servers=fragile.bootstrap))
    name = f"t{uuid.uuid4().hex[:8]}"
    topics.create([name], partitions=4, replication=1)
    topics.close()
    return name


@pytest.mark.parametrize("connect", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.usefixtures("without_collector")
def test_client_of_a_frozen_broker_leaves_no_descriptor(
    connect: Connect, fragile: EmbeddedKafka, topic: str, eventually: Eventually
) -> None:
    connection = KafkaConnection(bootstrap_servers=fragile.bootstrap)
    publisher = KafkaPublisher(connection, connect=connect)
    small, large = (Record(topic, None, b"v" * size, ()) for size in (1, 900_000))
    publisher.publish([small], timeout=10)
    publisher.close()
    eventually(lambda: not threads_named(KAFKA_THREADS), "the client is closed")
    before = descriptors()
    for _ in range(3):
        assert publisher.publish([small], timeout=10)[0].outcome is DeliveryOutcome.ACKNOWLEDGED
        with frozen(fragile.pid):
            # More than the buffers of the sockets take: the rest waits in the client.
            ended = publisher.publish([large] * 20, timeout=0.5)
        assert ended[0].outcome is DeliveryOutcome.UNCONFIRMED
    eventually(lambda: descriptors() <= before, f"at most {before} descriptors")


def test_member_without_heartbeat_answers_uses_little_cpu(
    fragile: EmbeddedKafka, topic: str, eventually: Eventually
) -> None:
    connection = KafkaConnection(bootstrap_servers=fragile.bootstrap)
    subscriber = KafkaSubscriber(connection, group=topic, topics=[topic], session_timeout=6)

    def poll() -> bool:
        subscriber.poll(timeout=0.1, limit=100)
        return subscriber.has_caught_up()

    try:
        eventually(poll, "the member has joined")
        with frozen(fragile.pid):
            end, used = time.monotonic() + 5, time.process_time()
            while time.monotonic() < end:
                subscriber.poll(timeout=0.1, limit=100)
            used = time.process_time() - used
    finally:
        subscriber.close()
    assert used < 0.6, f"{used:.2f} s of processor time in 5 s without an answer"
