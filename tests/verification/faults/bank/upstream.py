"""The upstream bank: debits an account, sends the event, and refunds a refused transfer."""

from __future__ import annotations

import os
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, RetryPolicy
from tests.verification.faults.bank import STATED, TRANSFERRED, Transfer
from tests.verification.faults.bank.breakable import QUICK, BreakableShield, lease
from tests.verification.faults.bank.ledger_database import ledger_engine

shield = BreakableShield.from_env()
sending = RetryPolicy(max_attempts=int(os.environ.get("BANK_SEND_ATTEMPTS", "3")), **QUICK)
shield.declare(TRANSFERRED, payload=Transfer, retry=sending)
if "BANK_STATEMENTS" in os.environ:
    shield.declare(STATED, retry=sending)
returns = shield.consumer(os.environ["BANK_GROUP"])
ledger = ledger_engine()
if ledger is not None:
    shield.barrier(TRANSFERRED, engine=ledger)


def transfer(session: Session, event_id: UUID, account: str, amount: int, **fate: str) -> None:
    """Take money from an account and publish the transfer, in the caller's transaction.

    `fate` is the outcome of the transfer, see Transfer.
    """
    seq = session.scalars(
        text(
            "UPDATE account SET balance = balance - :amount, last_seq = last_seq + 1 "
            "WHERE name = :account RETURNING last_seq"
        ),
        {"account": account, "amount": amount},
    ).one()
    session.execute(
        text("INSERT INTO transfer VALUES (:id, :account, :seq, :amount)"),
        {"id": event_id, "account": account, "seq": seq, "amount": amount},
    )
    payload = Transfer(account=account, seq=seq, amount=amount, **fate)
    shield.outbox.add(session, Event(id=event_id, type=TRANSFERRED, payload=payload, key=account))


@returns.compensates(
    TRANSFERRED,
    lease=lease(),
    retry=RetryPolicy(max_attempts=4, **QUICK),
    payload=Transfer,
    authorised=["downstream"] if "BANK_WARY" in os.environ else None,
)
def refund(session: Session, event: Event) -> None:
    """Refund a refused transfer."""
    if event.payload.undo == "never" and "BANK_REPAIRED" not in os.environ:
        raise RuntimeError("this transfer can never be refunded")
    _refund_into(session, event, "refund")


@shield.local_rollback(TRANSFERRED)
def withdraw(session: Session, event: Event) -> None:
    """Refund a transfer whose event failed permanently."""
    _refund_into(session, event, "withdrawal")


def _refund_into(session: Session, event: Event, table: str) -> None:
    row = {"id": event.id, "account": event.payload.account, "amount": event.payload.amount}
    session.execute(
        text(f"INSERT INTO {table} (id, account, amount) VALUES (:id, :account, :amount)"), row
    )
    session.execute(
        text("UPDATE account SET balance = balance + :amount WHERE name = :account"), row
    )
