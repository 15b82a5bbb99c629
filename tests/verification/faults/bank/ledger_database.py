"""The upstream bank's old ledger: a separate database, into which no event can be written.

A half message announces each withdrawal in it. A barrier next to its books shows the outcome of its
transactions.
"""

from __future__ import annotations

import os
from uuid import UUID

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

LEDGER = "BANK_LEDGER_URL"
"""The environment variable with its URL; without the variable the bank has no ledger."""


def ledger_engine() -> Engine | None:
    """Open the ledger of this process's bank, if the bank has one."""
    url = os.environ.get(LEDGER)
    if url is None:
        return None
    return create_engine(url, pool_size=4, connect_args={"connect_timeout": 5})


def book(session: Session, transfer: UUID, account: str, amount: int) -> None:
    """Take money from an account without earlier entries."""
    row = {"id": transfer, "account": account, "amount": amount}
    session.execute(text("INSERT INTO account VALUES (:account, -:amount, 1)"), row)
    session.execute(text("INSERT INTO transfer VALUES (:id, :account, 1, :amount)"), row)
