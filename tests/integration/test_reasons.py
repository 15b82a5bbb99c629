"""Whatever text an error carries, what it happened to goes on, and its reason is stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, Settings, ShieldTx
from shieldtx.ports import Delivery, Outcome
from tests.services import QUICK, Service, Wire, drain, make_topics

NASTY = "no stock\x00 of \ud800 " + "x" * 100_000


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    for name in ("order.placed", "order.undone"):
        service.app.declare(name)
    make_topics(service)
    return service


def place(service: Service, **fields) -> None:
    with service.transaction() as session:
        service.app.outbox.add(session, Event(type="order.placed", key="a", **fields))


def reasons(service: Service, table: str) -> list[str]:
    return [reason for (reason,) in service.rows(f"SELECT last_error FROM {table}")]


@pytest.mark.parametrize("error", [ValueError(NASTY), Refused(NASTY)], ids=["bug", "refusal"])
def test_a_handler_gives_up_with_whatever_its_error_says(orders, make_service, error):
    stock = make_service("stock")

    @stock.app.consumer("stock").handles("order.placed", retry=QUICK)
    def refuse(session, event) -> None:
        raise error

    taken_back = []

    @orders.app.consumer("orders").compensates("order.placed")
    def cancel(session, event) -> None:
        taken_back.append(event.key)

    make_topics(stock)
    place(orders)
    consumers = stock.app.consumer_worker("stock"), orders.app.consumer_worker("orders")
    drain(orders.relay(), stock.relay(), *consumers)
    assert stock.inbox() == {"MAX_RECONSUMED": 1}
    assert "no stock\ufffd of ? xxx" in reasons(stock, "shield_inbox")[0]
    assert taken_back == ["a"]


def test_a_rejection_is_stored_with_whatever_the_broker_said(orders: Service, wire: Wire):
    wire.fate = lambda record: Delivery(outcome=Outcome.REJECTED, reason=NASTY)
    place(orders)
    drain(orders.relay())
    assert orders.outbox() == {"FAILED": 1}
    assert reasons(orders, "shield_outbox")[0].startswith("no stock\ufffd of ?")


def test_a_local_rollback_that_fails_lets_its_event_wait_and_the_others_go(
    orders: Service, wire: Wire
):
    @orders.app.local_rollback("order.placed")
    def undo(session, event) -> None:
        raise ValueError(NASTY)

    wire.fate = lambda record: (
        Delivery(outcome=Outcome.REJECTED, reason=NASTY) if record.key == b"a" else None
    )
    place(orders)
    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type="order.placed", key="b"))
    drain(orders.relay())
    assert orders.outbox() == {"INIT": 1, "PROCESSED": 1}


def test_a_local_rollback_whose_own_event_is_refused_lets_its_event_wait(
    orders: Service, wire: Wire
):
    @orders.app.local_rollback("order.placed")
    def undo(session, event) -> None:
        orders.app.outbox.add(session, Event(type="order.undone", biz_key="once"))

    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type="order.undone", biz_key="once"))
    wire.fate = lambda record: (
        Delivery(outcome=Outcome.REJECTED, reason="too large") if record.key == b"a" else None
    )
    place(orders)
    drain(orders.relay())
    (reason,) = [r for r in reasons(orders, "shield_outbox") if r]
    assert "local rollback failed: EventRefused" in reason
    assert orders.outbox() == {"INIT": 1, "PROCESSED": 1}


def test_what_a_handlers_statement_was_given_is_in_no_reason(database_url: str):
    shield = ShieldTx(Settings(source="stock", database_url=database_url))
    with Session(shield.engine) as session, pytest.raises(DBAPIError) as failed:
        session.execute(text("INSERT INTO nowhere VALUES (:card)"), {"card": "4000-1234"})
    shield.close()
    assert "nowhere" in str(failed.value)
    assert "4000-1234" not in str(failed.value)
