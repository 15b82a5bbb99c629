"""The downstream bank: credits or refuses each transfer; its auditors keep their own books."""

from __future__ import annotations

import os

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy
from tests.verification.faults.bank import TRANSFERRED, Transfer, auditors_of
from tests.verification.faults.bank.breakable import QUICK, BreakableShield, lease

shield = BreakableShield.from_env()
tills = shield.consumer(os.environ["BANK_GROUP"])
auditors = shield.consumer(auditors_of(os.environ["BANK_GROUP"]))


class Remark(BaseModel):
    """A type that the note of a transfer never fits."""

    note: int


@tills.handles(
    TRANSFERRED, lease=lease(), retry=RetryPolicy(max_attempts=4, **QUICK), payload=Transfer
)
def credit(session: Session, event: Event) -> None:
    """Credit a transfer, or refuse it for a reason of the bank's own."""
    transfer: Transfer = event.payload
    row = {
        "id": event.id,
        "account": transfer.account,
        "seq": transfer.seq,
        "amount": transfer.amount,
    }
    session.execute(
        text(
            "INSERT INTO account VALUES (:account, :amount) "
            "ON CONFLICT (name) DO UPDATE SET balance = account.balance + excluded.balance"
        ),
        row,
    )
    if transfer.refuse == "halfway":
        session.commit()
        raise RuntimeError("the book of credits is closed")
    if transfer.refuse == "by constraint":
        session.execute(text("INSERT INTO remark VALUES (:note)"), {"note": transfer.note})
    if transfer.refuse == "by model":
        Remark.model_validate({"note": transfer.note})
    session.execute(
        text("INSERT INTO credit (id, account, seq, amount) VALUES (:id, :account, :seq, :amount)"),
        row,
    )
    shield.break_in_handler()
    if transfer.refuse in {"at once", "by all"}:
        raise Refused("the account is closed")
    if transfer.refuse == "slowly":
        raise RuntimeError("the account does not answer")


@auditors.handles(
    TRANSFERRED, lease=lease(), retry=RetryPolicy(max_attempts=4, **QUICK), payload=Transfer
)
def audit(session: Session, event: Event) -> None:
    """Enter a transfer in the auditors' books, whatever the bank does with it, or refuse it too."""
    _enter(session, event, 1)
    if event.payload.refuse == "by all":
        raise Refused("no group accepts this")


@auditors.compensates(
    TRANSFERRED, lease=lease(), retry=RetryPolicy(max_attempts=4, **QUICK), payload=Transfer
)
def strike_out(session: Session, event: Event) -> None:
    """Remove a transfer that the bank refused from the auditors' books."""
    _enter(session, event, -1)


def _enter(session: Session, event: Event, entry: int) -> None:
    session.execute(
        text("INSERT INTO audit (id, entry) VALUES (:id, :entry)"), {"id": event.id, "entry": entry}
    )
