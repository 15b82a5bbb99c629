"""The transaction of a caller: the objects that stand for one."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from shieldtx.errors import TransactionRefused

CallersTransaction: TypeAlias = (
    Session | AsyncSession | Connection | scoped_session[Any] | async_scoped_session[Any]
)


def caller_of(transaction: object) -> Session | AsyncSession | Connection:
    """Return the session or connection of a caller; raises TransactionRefused for other objects."""
    if isinstance(transaction, (scoped_session, async_scoped_session)):
        transaction = transaction()
    if isinstance(transaction, (Session, AsyncSession, Connection)):
        return transaction
    way_out = (
        ": use `await connection.run_sync(outbox.add, event)`"
        if isinstance(transaction, AsyncConnection)
        else ""
    )
    raise TransactionRefused(
        "events are added on a Session, AsyncSession or Connection, not on a "
        f"{type(transaction).__name__}{way_out}"
    )


def open_transaction(caller: Session | AsyncSession | Connection) -> object:
    """Return the open transaction, to be compared with a later one; None without one."""
    if isinstance(caller, AsyncSession):
        return caller.sync_session.get_transaction()
    return caller.get_transaction()
