"""Forged rollbacks: they end where an operator sees them, and block no other event."""

from __future__ import annotations

from uuid import UUID

import pytest

from shieldtx import Event
from shieldtx.brokers import cloudevents
from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.states import TxKind
from shieldtx.testing.memory_broker import MemoryBroker
from tests.robustness.conftest import Make
from tests.robustness.strategies import GOOD
from tests.support.service import QUICK, Service, drain, effect


@pytest.fixture
def service(make_service: Make) -> Service:
    service = make_service("orders", MemoryBroker())
    service.app.declare("orders.placed")
    service.app.consumer("orders").compensates("orders.placed", retry=QUICK)(effect("compensated"))
    service.app.broker.topics().create(service.app.topics(), partitions=1, replication=1)
    return service


def rollback(
    event_id: UUID, of: UUID, *, source: str = "till", of_source: str = "till"
) -> Envelope:
    return GOOD.evolve(
        id=event_id,
        source=source,
        kind=TxKind.ROLLBACK,
        biz_key=None,
        causation_id=of,
        causation_source=of_source,
    )


def consume(service: Service, *envelopes: Envelope) -> None:
    records = [cloudevents.encode(envelope, "") for envelope in envelopes]
    service.app.broker.publisher().publish(records, timeout=5)
    consumer = service.app.build_consumer("orders")
    drain(consumer)
    consumer.close()


def written(service: Service) -> UUID:
    event = Event(type="orders.placed", key=GOOD.key, payload={"n": 1})
    with service.transaction() as session:
        service.app.outbox.add(session, event)
    return event.id


def test_circular_rollbacks_do_not_block_an_honest_one(service: Service) -> None:
    one, other = new_event_id(), new_event_id()
    honest = rollback(new_event_id(), written(service), of_source="orders")
    consume(service, rollback(one, other), rollback(other, one), honest)
    assert service.effects() == [GOOD.key]
    assert service.inbox() == {"DEAD": 2, "PROCESSED": 1}


def test_rollback_of_a_received_rollback_compensates_nothing(service: Service) -> None:
    service.app.groups["orders"].handles("orders.placed")(effect("placed"))
    foreign = rollback(new_event_id(), new_event_id())
    consume(service, foreign)
    assert service.inbox() == {"PROCESSED": 1, "FENCED": 1}
    consume(service, rollback(new_event_id(), foreign.id))
    assert service.effects() == []
    assert service.inbox() == {"PROCESSED": 1, "FENCED": 1, "DEAD": 1}


def test_rollback_of_an_own_rollback_compensates_nothing(service: Service) -> None:
    own = new_event_id()
    with service.transaction() as session:
        undo = rollback(own, new_event_id(), source="orders")
        service.app.outbox.add_envelope(session, undo)
    consume(service, rollback(new_event_id(), own, of_source="orders"))
    assert service.effects() == []
    assert service.inbox() == {"DEAD": 1}
    [(reason,)] = service.rows("SELECT last_error FROM shield_inbox")
    assert "NothingToCompensate" in reason


def test_rollback_without_a_cause_is_dead_at_once(service: Service) -> None:
    nameless = rollback(new_event_id(), new_event_id()).evolve(
        causation_id=None, causation_source=None
    )
    consume(service, nameless)
    assert service.rows("SELECT status, attempts FROM shield_inbox") == [("DEAD", 1)]
