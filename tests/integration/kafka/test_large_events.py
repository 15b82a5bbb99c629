"""The largest payload that a service accepts is sent and handled; a larger one is refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.brokers.kafka.broker import KafkaBroker
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import TooLarge
from shieldtx.settings.settings import Settings
from tests.support.service import Service, drain

LARGEST = 16 * 1024 * 1024
HEADERS = {f"note-{n}": "h" * 2_000 for n in range(8)}


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Iterator[str]:
    """An event type whose topic accepts the largest payload of a service."""
    name = f"t-{uuid.uuid4().hex}"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    described = {
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": {"max.message.bytes": str(LARGEST + 100_000)},
    }
    admin.create_topics({f"{name}.commit": described}, wait_for_metadata=True)
    yield name
    admin.close()


@pytest.fixture(params=["kafka-python", "confluent-kafka"])
def service(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, migrated_url: str, topic: str
) -> Iterator[Service]:
    settings = Settings(
        source="orders",
        database_url=migrated_url,
        kafka_bootstrap=kafka.bootstrap,
        kafka_producer=request.param,
        max_payload_bytes=LARGEST,
    )
    service = Service(
        "orders",
        migrated_url,
        KafkaBroker.from_settings(settings),
        shards=4,
        max_payload_bytes=LARGEST,
    )
    service.app.declare(topic)
    yield service
    service.close()


def event_of(topic: str, size: int) -> Event:
    """Return an event whose payload has the given number of bytes as JSON."""
    return Event(type=topic, payload="x" * (size - 2), key="k" * 512, headers=HEADERS)


def test_the_largest_payload_that_is_accepted_is_handled(
    service: Service, topic: str, eventually: Callable[..., None]
) -> None:
    handled: list[int] = []

    @service.app.consumer(f"g-{topic}").handles(topic)
    def handle(session: Session, event: Event) -> None:
        handled.append(len(event.payload))

    with service.transaction() as session:
        service.app.outbox.add(session, event_of(topic, LARGEST))
    relay = service.relay()
    drain(relay)
    relay.close()
    assert service.rows("SELECT status, last_error FROM shield_outbox") == [("PROCESSED", None)]

    consumer = service.app.build_consumer(f"g-{topic}")
    eventually(lambda: consumer.run_once() and handled, "the event is handled", within=30)
    consumer.close()
    assert handled == [LARGEST - 2]
    assert service.inbox() == {"PROCESSED": 1}


def test_a_payload_above_the_limit_is_refused_where_it_is_added(
    service: Service, topic: str
) -> None:
    with service.transaction() as session, pytest.raises(TooLarge, match="the limit is 16777216"):
        service.app.outbox.add(session, event_of(topic, LARGEST + 1))
