"""A relay under a real quota of Apache Kafka is slower, and otherwise unchanged."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from shieldtx import Event
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.brokers.kafka.kafka_python_producer import connect
from shieldtx.brokers.kafka.producer_client import ProducerSettings
from shieldtx.brokers.kafka.publisher import KafkaPublisher
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.relay.relay import Relay
from shieldtx.relay.result import RelayResult
from tests.support.kafka_clients import CLIENTS
from tests.support.kafka_quotas import set_producer_quota
from tests.support.service import Service, make_topics

QUOTA = 300_000
"""Bytes per second."""
PAYLOAD = "x" * 1000
LEASE_S = 3
CLIENT_NAMES = ["kafka-python", "confluent-kafka"]


@pytest.fixture
def client_id() -> str:
    """The client id with the quota."""
    return f"c-{uuid.uuid4().hex}"


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex}"


@pytest.fixture(params=CLIENT_NAMES)
def orders(
    request: pytest.FixtureRequest,
    migrated_url: str,
    kafka: EmbeddedKafka,
    client_id: str,
    topic: str,
) -> Iterator[Service]:
    """A service whose leases are shorter than the throttling pauses of a batch of its size."""
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap, client_id=client_id)
    service = Service(
        "orders",
        migrated_url,
        KafkaBroker(connection, producer=request.param),
        migrated=True,
        shards=4,
        kafka_producer=request.param,
        relay_lease=LEASE_S,
        relay_send_timeout=2,
    )
    service.app.declare(topic)
    make_topics(service)
    yield service
    service.close()


def write(service: Service, topic: str, events: range) -> None:
    with service.transaction() as session:
        service.app.outbox.add_all(
            session, [Event(type=topic, payload=PAYLOAD, key=f"k{n % 50}") for n in events]
        )


def run(relay: Relay, service: Service, *, within: float) -> list[RelayResult]:
    """Run passes as a worker does, until all rows are PROCESSED."""
    passes: list[RelayResult] = []
    deadline = time.monotonic() + within
    while service.outbox().keys() != {"PROCESSED"}:
        assert time.monotonic() < deadline, f"{service.outbox()} after {within} s: {passes[-3:]}"
        passes.append(relay.run_once())
        time.sleep(min(passes[-1].slowed, LEASE_S / 4))
    return passes


def test_throttled_relay_loses_nothing_and_returns_to_speed(
    orders: Service, kafka: EmbeddedKafka, client_id: str, topic: str
) -> None:
    """Throttling uses no attempts."""
    set_producer_quota(kafka.bootstrap, client_id, QUOTA)
    write(orders, topic, range(2000))
    relay = orders.relay()
    began = time.monotonic()
    passes = run(relay, orders, within=60)
    took = time.monotonic() - began
    assert took > 2000 * len(PAYLOAD) / QUOTA / 2, "the quota was not felt"
    assert any(step.slowed for step in passes)
    assert not any(step.lost or step.failed or step.retried for step in passes)
    assert orders.rows("SELECT DISTINCT attempts FROM shield_outbox") == [(1,)]
    # librdkafka may have several requests in flight when the first is throttled.
    is_certain = orders.app.settings.kafka_producer == "kafka-python"
    outages = [step.outage for step in passes if step.outage and step.claimed]
    assert len(outages) <= (0 if is_certain else 10), outages

    set_producer_quota(kafka.bootstrap, client_id, None)
    time.sleep(relay.run_once().slowed)
    write(orders, topic, range(2000, 22_000))
    began = time.monotonic()
    passes = run(relay, orders, within=60)
    assert max(step.published for step in passes) >= 1000, "full batches again"
    assert time.monotonic() - began < 20_000 * len(PAYLOAD) / QUOTA / 2
    relay.close()
    came = ids_on(orders, f"{topic}.commit")
    assert len(set(came)) == 22_000
    assert len(came) == 22_000 or not is_certain


def ids_on(service: Service, topic: str) -> list[bytes | None]:
    """Return the event id of each record on a topic."""
    subscriber = service.app.broker.subscriber(f"g-{uuid.uuid4().hex}", [topic])
    came: list[bytes | None] = []
    while not subscriber.has_caught_up():
        for record in subscriber.poll(timeout=0.5, limit=5000):
            came += [value for name, value in record.headers if name == "ce_id"]
    subscriber.close()
    return came


@pytest.mark.parametrize("client", [name for name in CLIENTS if "kafka-python" in name])
def test_records_not_handed_over_before_a_pause_are_deferred(
    kafka: EmbeddedKafka, client_id: str, topic: str, client: str
) -> None:
    """The pause is longer than the time of the call, whose records are larger than a batch."""
    set_producer_quota(kafka.bootstrap, client_id, QUOTA)
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap, client_id=client_id)
    admin = KafkaBroker(connection).topics()
    admin.create([topic], partitions=1, replication=1)
    admin.close()
    publisher = KafkaPublisher(connection, connect=CLIENTS[client])
    records = [Record(topic=topic, key=b"k", value=b"x" * 900_000) for _ in range(20)]
    deliveries = publisher.publish(records, timeout=15)
    outcomes = [delivery.outcome for delivery in deliveries]
    assert outcomes[0] is DeliveryOutcome.ACKNOWLEDGED
    assert outcomes[-1] is DeliveryOutcome.DEFERRED
    assert set(outcomes) == {DeliveryOutcome.ACKNOWLEDGED, DeliveryOutcome.DEFERRED}
    assert "asks for a pause" in deliveries[-1].reason
    assert publisher.pressure().pause > 0
    publisher.close()


def test_a_throttling_pause_of_librdkafka_is_reported_too(
    kafka: EmbeddedKafka, client_id: str, topic: str
) -> None:
    set_producer_quota(kafka.bootstrap, client_id, QUOTA)
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap, client_id=client_id)
    admin = KafkaBroker(connection).topics()
    admin.create([topic], partitions=1, replication=1)
    admin.close()
    publisher = KafkaPublisher(connection, connect=CLIENTS["confluent-kafka"])
    (delivery,) = publisher.publish(
        [Record(topic=topic, key=b"k", value=b"x" * 900_000)], timeout=15
    )
    assert delivery.outcome is DeliveryOutcome.ACKNOWLEDGED
    assert 0 < publisher.pressure().pause < 10
    publisher.close()


def test_client_without_a_quota_reports_no_pressure(
    kafka: EmbeddedKafka, client_id: str, topic: str
) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap, client_id=client_id)
    admin = KafkaBroker(connection).topics()
    admin.create([topic], partitions=1, replication=1)
    admin.close()
    publisher = KafkaPublisher(connection, connect=connect)
    records = [Record(topic=topic, key=b"k", value=b"x" * 10_000) for _ in range(200)]
    outcomes = {delivery.outcome for delivery in publisher.publish(records, timeout=15)}
    assert outcomes == {DeliveryOutcome.ACKNOWLEDGED}
    assert not publisher.pressure()
    publisher.close()


def test_call_that_fills_the_queue_is_sent_whole_and_reported(
    kafka: EmbeddedKafka, client_id: str, topic: str
) -> None:
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap, client_id=client_id)
    admin = KafkaBroker(connection).topics()
    admin.create([topic], partitions=1, replication=1)
    admin.close()
    publisher = KafkaPublisher(connection, connect=CLIENTS["confluent-kafka"])
    queue = 2 * ProducerSettings().max_request_bytes
    records = [Record(topic=topic, key=b"k", value=b"x" * 100_000)] * (queue // 100_000 + 10)
    outcomes = {delivery.outcome for delivery in publisher.publish(records, timeout=30)}
    assert outcomes == {DeliveryOutcome.ACKNOWLEDGED}
    pressure = publisher.pressure()
    assert (pressure.full, pressure.pause) == (True, 0.0)
    publisher.publish(records[:1], timeout=15)
    assert not publisher.pressure()
    publisher.close()
