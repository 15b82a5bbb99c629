"""The downstream service: it reserves what was ordered, or refuses."""

from __future__ import annotations

import os
from datetime import timedelta

from shop import GATE
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy, ShieldTx

STOCK = 100

shield = ShieldTx.from_env()
stock = shield.consumer(os.environ.get("SHOP_STOCK_GROUP", "stock"))


@stock.handles(
    "orders.placed",
    # The lease is short, since the tests kill handlers.
    lease=timedelta(seconds=4),
    retry=RetryPolicy(first=timedelta(seconds=0.1), longest=timedelta(seconds=0.1)),
)
def reserve(session: Session, event: Event) -> None:
    """Reserve the ordered quantity."""
    session.execute(text("SELECT pg_advisory_xact_lock_shared(:gate)"), {"gate": GATE})
    if event.payload["quantity"] > STOCK:
        raise Refused(f"only {STOCK} in stock")
    session.execute(
        text("INSERT INTO reserved (key, number) VALUES (:key, :number)"),
        {"key": event.key, "number": event.payload["number"]},
    )
