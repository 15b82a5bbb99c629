"""A service whose module executes SHOP_DOES at import."""

from __future__ import annotations

import os
import sys

from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, ShieldTx

match os.environ.get("SHOP_DOES"):
    case "print":
        print("hello from the shop")
    case "exit":
        sys.exit(0)
    case "exit loudly":
        sys.exit("no such luck\nsecond line")
    case "raise":
        raise RuntimeError("first line\nsecond line \x1b[31mred")
    case "interrupt":
        raise KeyboardInterrupt
    case "recurse":
        exec("f = lambda: f()\nf()")  # noqa: S102  a stack of its own

shield = ShieldTx.from_env()
stock = shield.consumer(os.environ.get("SHOP_GROUP", "stock"))


@stock.handles("orders.placed")
def reserve(session: Session, event: Event) -> None:
    session.execute(
        text("INSERT INTO effects VALUES (:id, :key, 'reserved')"),
        {"id": str(event.id), "key": event.key},
    )
