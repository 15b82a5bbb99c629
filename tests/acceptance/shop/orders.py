"""The upstream: it places orders, and cancels those that the stock service refuses."""

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
    """What the stock service needs to know."""

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
    """Take back an order that nobody could be told about."""
    order: OrderPlaced = event.payload
    session.execute(text("DELETE FROM placed WHERE number = :number"), {"number": order.number})


@orders.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))
def cancel(session: Session, event: Event) -> None:
    """Cancel a refused order; an order whose note says so can never be cancelled."""
    order: OrderPlaced = event.payload
    if order.note == "for ever":
        raise ValueError("this order cannot be cancelled")
    session.execute(text("INSERT INTO cancelled VALUES (:number)"), {"number": order.number})


@shield.checks("orders.placed")
def is_placed(event: Event) -> LocalOutcome:
    """Tell how the local transaction of a half message ended, by the order's note."""
    order: OrderPlaced = event.payload
    known = order.note in set(LocalOutcome)
    return LocalOutcome(order.note) if known else LocalOutcome.UNKNOWN
