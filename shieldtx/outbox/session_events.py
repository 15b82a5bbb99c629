"""Forwards SQLAlchemy's events of sessions and connections to their buffers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, ExceptionContext
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction, UOWTransaction

from shieldtx.domain.statement_watches import BUFFERS
from shieldtx.outbox.session_buffer import SessionBuffer


def buffers_of(session: Session) -> dict[object, SessionBuffer]:
    """Return the buffers of a session, by the outbox that fills them."""
    buffers: dict[object, SessionBuffer] = session.info.setdefault(BUFFERS, {})
    return buffers


# These listeners cover all connections and sessions of the process: a listener for a single one
# costs as much as writing an event.
@sqlalchemy_event.listens_for(Engine, "commit")
def _on_connection_commit(connection: Connection) -> None:
    for buffer in _listening(connection):
        buffer.on_connection_commit(connection)


@sqlalchemy_event.listens_for(Engine, "rollback")
def _on_connection_rollback(connection: Connection) -> None:
    for buffer in _listening(connection):
        buffer.on_connection_rollback(connection)


@sqlalchemy_event.listens_for(Engine, "before_cursor_execute")
def _on_statement(connection: Connection, _cursor: Any, statement: str, *_how: Any) -> None:
    for buffer in _listening(connection):
        buffer.on_statement(connection, statement)


@sqlalchemy_event.listens_for(Engine, "after_cursor_execute")
def _on_statement_end(connection: Connection, *_: Any) -> None:
    for buffer in _listening(connection):
        buffer.on_statement_end(connection)


@sqlalchemy_event.listens_for(Engine, "handle_error")
def _on_failure(context: ExceptionContext) -> None:
    connection = context.connection
    # A lost connection cannot be queried, and its error may arrive here more than once.
    if connection is not None and not connection.invalidated:
        for buffer in _listening(connection):
            buffer.on_failure(connection)


@sqlalchemy_event.listens_for(Engine, "prepare_twophase")
def _on_prepare(connection: Connection, _: Any) -> None:
    for buffer in _listening(connection):
        buffer.on_prepare(connection)


@sqlalchemy_event.listens_for(Session, "after_begin")
def _on_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    for buffer in _buffers(session):
        buffer.on_begin(connection)


@sqlalchemy_event.listens_for(Session, "after_flush")
def _on_flush(session: Session, _: UOWTransaction) -> None:
    for buffer in _buffers(session):
        buffer.on_flush()


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    for buffer in _buffers(session):
        buffer.on_before_commit()


@sqlalchemy_event.listens_for(Session, "after_commit")
def _on_after_commit(session: Session) -> None:
    for buffer in _buffers(session):
        buffer.on_after_commit()


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    for buffer in _buffers(session):
        buffer.on_end(ended)


def _buffers(session: Session) -> list[SessionBuffer]:
    """Return the buffers of a session; most sessions have none."""
    return list(session.info[BUFFERS].values()) if BUFFERS in session.info else []


def _listening(connection: Connection) -> list[SessionBuffer]:
    """Return the buffers registered on a connection."""
    return list(connection.get_execution_options().get(BUFFERS, ()))


def flush_events(session: Session) -> None:
    """Insert the waiting events of a session now, so that their errors are raised here."""
    for buffer in buffers_of(session).values():
        buffer.flush()
