"""The upstream bank's old ledger: a database of its own, which no event can be written into.

What leaves an account in it is announced by a half message; a barrier beside its books tells how
its transactions ended.
"""

from __future__ import annotations

import os
from uuid import UUID

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

LEDGER = "BANK_LEDGER_URL"
"""The variable of the environment that says where it is; without it the bank has none."""


def ledger_engine() -> Engine | None:
    """Open the ledger of this process's bank, if it has one."""
    url = os.environ.get(LEDGER)
    if url is None:
        return None
    return create_engine(url, pool_size=4, connect_args={"connect_timeout": 5})


def book(session: Session, transfer: UUID, account: str, amount: int) -> None:
    """Take money from an account without earlier entries."""
    row = {"id": transfer, "account": account, "amount": amount}
    session.execute(text("INSERT INTO account VALUES (:account, -:amount, 1)"), row)
    session.execute(text("INSERT INTO transfer VALUES (:id, :account, 1, :amount)"), row)
