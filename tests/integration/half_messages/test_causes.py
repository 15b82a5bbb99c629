"""A half message prepared in a handler names the handled event as its cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy
from shieldtx.errors import EventRefused
from tests.support.service import QUICK, Service, drain, effect, make_topics

PLACED, RESERVED = "orders.placed", "stock.reserved"
ONCE = RetryPolicy(max_attempts=1)

Prepare = Callable[..., None]


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    service.app.declare(PLACED)
    service.app.consumer("orders").compensates(PLACED)(effect("cancelled"))
    make_topics(service)
    return service


@pytest.fixture
def stock(make_service: Callable[..., Service]) -> Service:
    service = make_service("stock")
    service.app.declare(RESERVED)
    make_topics(service)
    return service


def _place(orders: Service, *keys: str) -> list[UUID]:
    with orders.transaction() as session:
        events = [Event(type=PLACED, key=key) for key in keys]
        ids = orders.app.outbox.add_all(session, events)
    drain(orders.relay())
    return ids


def _causes(stock: Service) -> dict[str, tuple[UUID | None, str | None]]:
    rows = stock.rows("SELECT key, causation_id, causation_source FROM shield_outbox")
    return {key: (cause, source) for key, cause, source in rows}


def by_block(stock: Service, event: Event, **fields: Any) -> None:
    with stock.app.half(RESERVED, key=event.key, **fields):
        pass


def by_asynchronous_block(stock: Service, event: Event, **fields: Any) -> None:
    async def main() -> None:
        async with stock.app.half(RESERVED, key=event.key, **fields):
            pass

    asyncio.run(main())


def by_hand(stock: Service, event: Event, **fields: Any) -> None:
    stock.app.half_commit(stock.app.half_prepare(RESERVED, key=event.key, **fields))


def by_decorator(stock: Service, event: Event) -> None:
    @stock.app.transactional(RESERVED, payload="order", key=lambda order: order["key"])
    def reserve(order: dict[str, str | None]) -> None:
        pass

    reserve({"key": event.key})


def beside_another_session(stock: Service, event: Event) -> None:
    """A transaction of another database is open in the handler."""
    with Session(stock.engine) as other, other.begin():
        other.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        by_block(stock, event)


WAYS = (by_block, by_asynchronous_block, by_hand, by_decorator, beside_another_session)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("prepare", WAYS)
def test_the_cause_is_the_event_that_is_handled(
    orders: Service, stock: Service, prepare: Prepare, alone: bool
) -> None:
    @stock.app.consumer("stock").handles(PLACED, alone=alone)
    def reserve(_: Session, event: Event) -> None:
        prepare(stock, event)

    ids = _place(orders, "a", "b")
    drain(stock.app.build_consumer("stock"))
    assert _causes(stock) == {"a": (ids[0], "orders"), "b": (ids[1], "orders")}


@pytest.mark.parametrize("prepare", WAYS)
def test_a_refusal_downstream_takes_the_cause_back(
    orders: Service, stock: Service, make_service: Callable[..., Service], prepare: Prepare
) -> None:
    shipping = make_service("shipping")
    group = stock.app.consumer("stock")

    @group.handles(PLACED)
    def reserve(_: Session, event: Event) -> None:
        prepare(stock, event)

    group.compensates(RESERVED)(effect("unreserved"))

    @shipping.app.consumer("shipping").handles(RESERVED, retry=ONCE)
    def ship(_session: Session, _event: Event) -> None:
        raise Refused("no lorry")

    _place(orders, "a")
    consumers = [(orders, "orders"), (stock, "stock"), (shipping, "shipping")]
    drain(
        *(service.relay() for service, _ in consumers),
        *(service.app.build_consumer(name) for service, name in consumers),
    )
    assert stock.effects("unreserved") == orders.effects("cancelled") == ["a"]


def test_each_message_of_a_list_handler_names_its_cause(orders: Service, stock: Service) -> None:
    @stock.app.consumer("stock").handles_many(PLACED)
    def reserve(_: Session, events: list[Event]) -> None:
        for event in events:
            by_block(stock, event, causation_id=event.id)
        by_block(stock, Event(type=PLACED, key="of none"))

    ids = _place(orders, "a", "b")
    drain(stock.app.build_consumer("stock"))
    named = {"a": (ids[0], "orders"), "b": (ids[1], "orders")}
    assert _causes(stock) == {**named, "of none": (None, None)}


def test_message_outside_of_handlers_may_name_a_cause(orders: Service, stock: Service) -> None:
    fails = True

    @stock.app.consumer("stock").handles(PLACED, retry=QUICK)
    def reserve(_session: Session, _event: Event) -> None:
        if fails:
            raise ValueError

    (cause,) = _place(orders, "a")
    consumer = stock.app.build_consumer("stock")
    consumer.run_once()
    by_block(stock, Event(type=PLACED, key="after a failure"))
    fails = False
    drain(consumer)
    by_block(stock, Event(type=PLACED, key="after it"))
    named = {"causation_id": cause, "causation_source": "orders"}
    by_block(stock, Event(type=PLACED, key="named"), **named)
    with suppress(EventRefused):
        by_block(stock, Event(type=PLACED, key="named in part"), causation_id=cause)
    none = (None, None)
    assert stock.inbox() == {"PROCESSED": 1}
    assert _causes(stock) == {
        "after a failure": none,
        "after it": none,
        "named": (cause, "orders"),
    }


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_message_after_a_failed_handler_has_no_cause(
    orders: Service, stock: Service, alone: bool
) -> None:
    """The connection of the handler may outlive it: an error refers to the connection."""
    kept: list[Any] = []

    def reserve(session: Session, event: Event) -> None:
        kept.append(session.connection())
        raise ValueError("no shelf")

    stock.app.consumer("stock").handles(PLACED, retry=ONCE, alone=alone)(reserve)
    _place(orders, "k")
    drain(stock.app.build_consumer("stock"))
    assert kept
    by_hand(stock, Event(type=PLACED, key="later"))
    assert _causes(stock)["later"] == (None, None)
