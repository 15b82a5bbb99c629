"""A relay whose broker asks for pauses: it sends less, loses nothing, and returns to full speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from shieldtx import Event
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.service import Service, make_topics

TOPIC = "orders.placed"
EVENTS = 60


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def wire(broker: MemoryBroker) -> MemoryBroker:
    return broker


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    orders = make_service("orders", relay_batch_size=20)
    orders.app.declare(TOPIC)
    make_topics(orders)
    with orders.transaction() as session:
        orders.app.outbox.add_all(
            session, [Event(type=TOPIC, payload=n, key=f"k{n % 7}") for n in range(EVENTS)]
        )
    return orders


def published(broker: MemoryBroker) -> list[int]:
    return sorted(int(record.value or b"") for record in broker.records(f"{TOPIC}.commit"))


def test_throttled_relay_releases_its_claims_and_makes_no_more(
    orders: Service, broker: MemoryBroker
) -> None:
    relay = orders.relay()
    broker.throttle(above=10, pause=60)
    relay.run_once()
    again = relay.run_once()
    assert (again.slowed > 0, again.claimed, again.more) == (True, 0, True)
    relay.close()
    assert orders.outbox() == {"PROCESSED": 20, "INIT": EVENTS - 20}
    assert orders.rows("SELECT DISTINCT attempts FROM shield_outbox WHERE status = 'INIT'") == [
        (0,)
    ]


def test_throttled_relay_publishes_all_in_smaller_batches(
    orders: Service, broker: MemoryBroker, eventually: Callable[..., None]
) -> None:
    """Throttling uses no attempts."""
    relay = orders.relay()
    broker.throttle(above=4, pause=0.05)
    sizes: list[int] = []

    def is_done() -> bool:
        step = relay.run_once()
        sizes.append(step.published)
        return len(published(broker)) == EVENTS and not step.more

    eventually(is_done, "everything is published")
    relay.close()
    assert published(broker) == list(range(EVENTS))
    assert orders.rows("SELECT DISTINCT status, attempts FROM shield_outbox") == [("PROCESSED", 1)]
    assert sizes.index(20) < sizes.index(4), "batches became smaller"


def test_batches_are_full_again_after_the_throttle_is_lifted(
    orders: Service, broker: MemoryBroker
) -> None:
    relay = orders.relay()
    broker.throttle(above=0, pause=0.01)
    for _ in range(4):
        time.sleep(relay.run_once().slowed)
    broker.lift_throttle()
    with orders.transaction() as session:
        orders.app.outbox.add_all(session, [Event(type=TOPIC, payload=n) for n in range(1000)])
    sizes = [relay.run_once().published for _ in range(60)]
    assert 20 in sizes[-20:]
    relay.close()
