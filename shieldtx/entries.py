"""The entry of a local transaction into the barrier: at once, or with the commit of a session."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.ports.half import Barrier

_ENTRIES = "shieldtx.entries"


def enter_now(caller: Session | Connection, barrier: Barrier, event_ids: Sequence[UUID]) -> None:
    """Enter the open transaction, which is begun where there is none.

    Raises TransactionRefused inside of a savepoint: it could be rolled back alone, and the barrier
    with it. Raises what the barrier raises.
    """
    if caller.in_nested_transaction():
        raise TransactionRefused(
            "the barrier would be in a savepoint, and be gone when that alone is rolled back: "
            "guard the transaction before its first savepoint"
        )
    barrier.enter(caller.connection() if isinstance(caller, Session) else caller, event_ids)


def enter_at_commit(session: Session, barrier: Barrier, event_ids: Sequence[UUID]) -> None:
    """Enter the transaction of a session that cannot reach its database here, with its commit."""
    if not session.in_transaction():
        session.begin()
    session.info.setdefault(_ENTRIES, []).append((barrier, list(event_ids)))


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    # A savepoint's release is no commit.
    if _ENTRIES not in session.info or session.in_nested_transaction():
        return
    for barrier, event_ids in session.info.pop(_ENTRIES):
        barrier.enter(session.connection(), event_ids)


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        session.info.pop(_ENTRIES, None)
