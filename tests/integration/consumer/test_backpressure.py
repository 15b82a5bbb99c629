"""A partition whose handlers fail fills up to its limit, and drains when they succeed again."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from shieldtx import Event, RetryPolicy
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.brokers.partitioning import partition_of
from shieldtx.consumer.consumer import Consumer
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import Broker
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.service import Service, drain, effect, make_topics

LIMIT, BATCH, EVENTS = 40, 15, 300
MOST = LIMIT + BATCH - 1
"""The maximum number of unfinished events of a partition."""
SOON = RetryPolicy(
    max_attempts=1_000_000, first=timedelta(seconds=0.2), longest=timedelta(seconds=0.4)
)


@pytest.fixture(params=["memory", "kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    if request.param == "memory":
        return MemoryBroker()
    server: EmbeddedKafka = request.getfixturevalue("kafka")
    return KafkaBroker(KafkaConnection(bootstrap_servers=server.bootstrap))


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex}"


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex}"


@pytest.fixture
def service(migrated_url: str, broker: Broker, topic: str) -> Iterator[Service]:
    """A service that handles its own events, of a topic with two partitions."""
    service = Service(
        "orders",
        migrated_url,
        broker,
        migrated=True,
        shards=4,
        consumer_batch_size=BATCH,
        consumer_pending_limit=LIMIT,
        consumer_breaker=0,  # the events of a whole partition fail, and those of the other do not
    )
    service.app.declare(topic)
    make_topics(service, partitions=2)
    keys = [f"k{n}" for n in range(EVENTS)]
    with service.transaction() as session:
        service.app.outbox.add_all(session, [Event(type=topic, key=key) for key in keys])
    relay = service.relay()
    drain(relay)
    relay.close()
    yield service
    service.close()


def is_sick(key: str | None) -> bool:
    return partition_of((key or "").encode(), 2) == 0


SICK = {f"k{n}" for n in range(EVENTS) if is_sick(f"k{n}")}
WELL = {f"k{n}" for n in range(EVENTS)} - SICK


@pytest.fixture
def healed(service: Service, topic: str, group: str) -> threading.Event:
    """An event that, once set, lets the handlers of partition 0 succeed."""
    healed = threading.Event()

    @service.app.consumer(group).handles(topic, retry=SOON)
    def handle(session: object, event: Event) -> None:
        if is_sick(event.key) and not healed.is_set():
            raise RuntimeError("not well")
        effect("done")(session, event)

    return healed


def unfinished(service: Service) -> dict[int, int]:
    """Return the number of unsettled inbox rows of each partition."""
    rows = service.rows(
        "SELECT record_partition, count(*) FROM shield_inbox WHERE settled_at IS NULL GROUP BY 1"
    )
    return dict(rows)


def passes_until(
    service: Service, condition: Callable[[], bool], *consumers: Consumer, most: int
) -> None:
    """Run passes until a condition holds; partition 0 never has more than `most` unsettled rows."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, (unfinished(service), service.inbox())
        for consumer in consumers:
            consumer.run_once()
            assert unfinished(service).get(0, 0) <= most


def paused_consumer(service: Service, group: str) -> Consumer:
    """Return a consumer that has paused partition 0, and handled all events of the other one."""
    consumer = service.app.build_consumer(group)
    passes_until(
        service,
        lambda: set(service.effects()) == WELL and unfinished(service).get(0, 0) >= LIMIT,
        consumer,
        most=MOST,
    )
    assert consumer.run_once().paused == 1
    return consumer


def assert_each_had_its_effect_once(service: Service) -> None:
    effects = service.effects()
    assert sorted(effects) == sorted(SICK | WELL)
    assert service.inbox() == {"PROCESSED": EVENTS}


def test_failing_partition_is_paused_and_drains_after_healing(
    service: Service, group: str, healed: threading.Event
) -> None:
    """The other partition continues in the meantime."""
    consumer = paused_consumer(service, group)
    (at,) = service.app.stores.limits().partitions({group: service.app.handled_by(group)}, LIMIT)
    assert (at.group, at.partition) == (group, 0)
    assert at.pending == unfinished(service)[0]

    healed.set()
    passes_until(service, lambda: len(service.effects()) == EVENTS, consumer, most=MOST)
    assert_each_had_its_effect_once(service)
    assert consumer.has_caught_up()
    consumer.close()


def test_drained_partition_is_read_again_without_another_sample(
    service: Service, group: str, healed: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that handles all that is due must not end before them."""
    consumer = paused_consumer(service, group)
    monkeypatch.setattr("shieldtx.domain.sampler.Sampler.is_due", lambda _: False)
    healed.set()
    passes_until(service, lambda: not unfinished(service).get(0), consumer, most=MOST)
    assert consumer.run_once().paused == 1, "no sample was due"
    assert not consumer.has_caught_up()
    while consumer.run_once().more or not consumer.has_caught_up():
        continue
    consumer.close()
    assert_each_had_its_effect_once(service)


def test_a_paused_partition_is_not_lost_in_a_rebalance(
    service: Service, group: str, healed: threading.Event
) -> None:
    first = service.app.build_consumer(group)
    passes_until(service, lambda: first.run_once().paused == 1, first, most=MOST)
    second = service.app.build_consumer(group)
    # Each consumer may take a batch of partition 0 before its first sample.
    most = LIMIT + 4 * BATCH
    passes_until(service, lambda: set(service.effects()) == WELL, first, second, most=most)
    first.close()
    passes_until(service, lambda: second.run_once().paused == 1, second, most=most)
    healed.set()
    passes_until(service, lambda: len(service.effects()) == EVENTS, second, most=most)
    assert_each_had_its_effect_once(service)
    second.close()
