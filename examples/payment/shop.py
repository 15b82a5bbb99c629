"""The shop: orders in its PostgreSQL, paid at the bank; `orders.paid` is sent for paid orders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from examples.payment.bank import HOST, PAID, REFUSED, VOID
from shieldtx import Event, LocalOutcome, Settings, ShieldTx
from shieldtx.ports.broker import Broker

PATIENCE_S = 0.5
"""Timeout of the bank's answers."""
ENDS = {PAID: LocalOutcome.COMMIT, VOID: LocalOutcome.ROLLBACK, REFUSED: LocalOutcome.ROLLBACK}


@dataclass
class Order:
    """An order that a customer has to pay."""

    id: int
    customer: str
    cents: int


class PaymentRefused(Exception):
    """The bank has answered that the order is not paid, and never will be."""


class Bank:
    """The bank's client in the shop: a request may get no answer."""

    def __init__(self, port: int) -> None:
        self._port = port

    def pay(self, payment_id: UUID, order: Order) -> None:
        """Pay an order. Raises PaymentRefused; after any other error the outcome is unknown."""
        asked = {"customer": order.customer, "cents": order.cents}
        state = self._ask("PUT", f"/payments/{payment_id}", asked)
        if state != PAID:
            raise PaymentRefused(f"order {order.id}: {state}")

    def end_of(self, payment_id: UUID) -> LocalOutcome:
        """Have the bank fix the outcome of a payment, and return it."""
        return ENDS[self._ask("POST", f"/payments/{payment_id}/settle", {})]

    def _ask(self, method: str, path: str, body: Mapping[str, object]) -> str:
        connection = HTTPConnection(HOST, self._port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, json.dumps(body))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "state" not in answer:
            raise HTTPException(f"the bank has answered {answer}")
        return str(answer["state"])


class Shop:
    """The shop's orders, and its declarations for shieldtx."""

    def __init__(self, database_url: str, broker: Broker, bank: Bank) -> None:
        self._bank = bank
        self.shield = ShieldTx(
            Settings(
                source="shop",
                database_url=database_url,
                # Short, so that the demo shows check-backs soon.
                half_immunity=timedelta(seconds=1),
                half_check_interval=timedelta(seconds=2),
                half_check_timeout=timedelta(seconds=1),
                barrier_patience=timedelta(seconds=0.5),
            ),
            broker=broker,
        )
        self.shield.declare("orders.paid", payload=Order)
        self.shield.checks("orders.paid")(self.how_it_ended)
        self.shield.consumer("dispatch").handles("orders.paid")(self.dispatch)

    def order(self, order: Order) -> None:
        """Store an order and pay it; the outcome may become known only later."""
        with self.shield.engine.begin() as connection:
            connection.execute(
                text("INSERT INTO orders VALUES (:id, :customer, :cents, NULL)"), vars(order)
            )
        with self.shield.half(
            "orders.paid", order, key=order.customer, rollback_on=(PaymentRefused,)
        ) as half:
            self._bank.pay(half.id, order)

    def how_it_ended(self, event: Event) -> LocalOutcome:
        """Return the bank's outcome; after an error it is still unknown."""
        return self._bank.end_of(event.id)

    @staticmethod
    def dispatch(session: Session, event: Event) -> None:
        """Dispatch a paid order."""
        session.execute(
            text("UPDATE orders SET paid_by = :payment WHERE id = :order AND paid_by IS NULL"),
            {"order": event.payload.id, "payment": str(event.id)},
        )

    def paid(self) -> dict[str, tuple[str, int]]:
        """Return customer and amount of all dispatched orders, by the payment's id."""
        with self.shield.engine.connect() as connection:
            rows = connection.execute(
                text("SELECT paid_by, customer, cents FROM orders WHERE paid_by IS NOT NULL")
            )
            return {payment: (customer, cents) for payment, customer, cents in rows}
