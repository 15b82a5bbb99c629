"""The upstream service: it places orders, and cancels those that the stock service refuses."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, LocalOutcome, RetryPolicy, ShieldTx

shield = ShieldTx.from_env()
orders = shield.consumer(os.environ.get("SHOP_ORDERS_GROUP", "orders"))


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderPlaced:
    """The fields that the stock service needs."""

    number: int
    quantity: int
    note: str


@shield.publishes("orders.placed", key=lambda order: f"k{order.number % 4}")
def place(session: Session, number: int, *, quantity: int = 1, note: str = "") -> OrderPlaced:
    """Store an order and publish it."""
    session.execute(text("INSERT INTO placed VALUES (:number)"), {"number": number})
    return OrderPlaced(number=number, quantity=quantity, note=note)


@shield.local_rollback("orders.placed")
def withdraw(session: Session, event: Event) -> None:
    """Delete an order whose event cannot be delivered."""
    order: OrderPlaced = event.payload
    session.execute(text("DELETE FROM placed WHERE number = :number"), {"number": order.number})


@orders.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))
def cancel(session: Session, event: Event) -> None:
    """Cancel a refused order; an order whose note forbids it can never be cancelled."""
    order: OrderPlaced = event.payload
    if order.note == "for ever":
        raise ValueError("this order cannot be cancelled")
    session.execute(text("INSERT INTO cancelled VALUES (:number)"), {"number": order.number})


@shield.checks("orders.placed")
def is_placed(event: Event) -> LocalOutcome:
    """Return the outcome of a half message's local transaction, as the order's note has it."""
    order: OrderPlaced = event.payload
    known = order.note in set(LocalOutcome)
    return LocalOutcome(order.note) if known else LocalOutcome.UNKNOWN
