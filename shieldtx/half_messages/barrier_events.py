"""Forwards SQLAlchemy's events of sessions and connections to the barrier entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.half_messages.barrier_entry import (
    entries_in,
    entries_of,
    entries_on,
    forget_entries_in,
)


@sqlalchemy_event.listens_for(Session, "after_begin")
def _on_begin(session: Session, begun: SessionTransaction, connection: Connection) -> None:
    # A savepoint has a beginning of its own, and its rollback would undo the barrier.
    for entry in () if begun.nested else entries_in(session):
        entry.on_begin(connection)


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    # The release of a savepoint is not a commit.
    if session.in_nested_transaction() or not (entries := entries_of(session)):
        return
    # Pending objects may be written over another connection than the barrier's.
    session.flush()
    for entry in entries:
        entry.before_session_commit(session)


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        forget_entries_in(session)


@sqlalchemy_event.listens_for(Session, "after_soft_rollback")
def _on_soft_rollback(session: Session, rolled_back: SessionTransaction) -> None:
    for entry in entries_in(session):
        entry.on_savepoint_rolled_back(rolled_back)


@sqlalchemy_event.listens_for(Engine, "rollback_savepoint")
def _on_savepoint_rolled_back(connection: Connection, name: str, _context: Any) -> None:
    for entry in entries_on(connection):
        entry.on_savepoint_rolled_back(name)


@sqlalchemy_event.listens_for(Engine, "before_cursor_execute")
def _on_statement(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    for entry in entries_on(connection):
        entry.on_statement(connection, statement)


@sqlalchemy_event.listens_for(Engine, "commit")
def _on_connection_commit(connection: Connection) -> None:
    # After an error in this event, SQLAlchemy treats the transaction as ended. The connection would
    # return to the pool with it, and its next user would commit it.
    _commit_or(partial(_roll_back, connection), connection)


@sqlalchemy_event.listens_for(Engine, "prepare_twophase")
def _on_prepare(connection: Connection, _xid: Any) -> None:
    # After an error in this event, the transaction is open: its owner rolls it back.
    _before_commit(connection)
    for entry in entries_on(connection):
        entry.on_prepare(connection)


@sqlalchemy_event.listens_for(Engine, "commit_twophase")
def _on_commit_twophase(connection: Connection, xid: Any, is_prepared: bool) -> None:  # noqa: FBT001  SQLAlchemy's signature
    if not is_prepared:
        # As in one phase. Drivers do not roll it back otherwise.
        roll_back = connection.dialect.do_rollback_twophase
        _commit_or(partial(roll_back, connection, xid, is_prepared=False), connection)


def _roll_back(connection: Connection) -> None:
    connection.connection.rollback()


def _commit_or(roll_back: Callable[[], None], connection: Connection) -> None:
    """Permit a connection's commit, or roll back a transaction that may not be committed."""
    try:
        _before_commit(connection)
    except BaseException:
        try:
            # A lost connection has rolled back, and accepts no rollback.
            if not connection.invalidated:
                roll_back()
        finally:
            _on_connection_end(connection)
        raise


def _before_commit(connection: Connection) -> None:
    for entry in list(entries_on(connection)):
        entry.before_connection_commit(connection)


@sqlalchemy_event.listens_for(Engine, "commit")
@sqlalchemy_event.listens_for(Engine, "commit_twophase")
@sqlalchemy_event.listens_for(Engine, "rollback")
@sqlalchemy_event.listens_for(Engine, "rollback_twophase")
def _on_connection_end(connection: Connection, *_: Any) -> None:
    entries = entries_on(connection)
    for entry in entries:
        entry.on_connection_end(connection)
    entries[:] = [entry for entry in entries if entry.is_waiting]
