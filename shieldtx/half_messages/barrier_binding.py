"""The connection by which a session enters a barrier, and the check of its other connections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session

from shieldtx.errors import TransactionRefused
from shieldtx.outbox.session_binding import begun_connections, route_of
from shieldtx.outbox.session_savepoints import enclosing
from shieldtx.ports.half_messages import Barrier


def connection_to(barrier: Barrier, caller: Session | Connection) -> Connection:
    """Return the connection by which a caller's transaction enters a barrier."""
    if isinstance(caller, Connection):
        return caller
    _bind_to(barrier, caller)
    return caller.connection(bind_arguments={"clause": route_of(caller, barrier.routed_by)})


def leads_to(barrier: Barrier, session: Session, connection: Connection) -> bool:
    """Whether a session enters a barrier over this one of its connections."""
    return _bind_to(barrier, session).engine is connection.engine


def shares_its_transaction(caller: Session | Connection, barrier: Barrier) -> bool:
    """Whether a session takes part in the transaction of its caller's Connection."""
    return isinstance(caller, Session) and isinstance(_bind_to(barrier, caller), Connection)


def refuse_written(
    barrier: Barrier, others: Iterable[Connection], *, own_database_only: bool
) -> None:
    """Raise TransactionRefused where a session has written over connections that are not guarded.

    The barrier only proves the outcome of its own connection. A connection that was only read is
    allowed: its commit changes nothing. Where the caller guarded a connection itself, the session's
    changes in other databases are not part of the local transaction (`own_database_only`).
    """
    for connection in others:
        if not barrier.may_have_written(connection):
            continue
        if not own_database_only or barrier.is_reached_by(connection):
            raise TransactionRefused(
                "the session has written over several connections, whose commits may end "
                "differently, and the barrier is in one of them, so the message could be sent "
                "without the data: let the session write over one engine, use "
                "Session(twophase=True), or a session for each. Of a session with several "
                "databases guard the connection to the one that the message is about: "
                "guard(session.connection(bind_arguments={'mapper': ...}))"
            )


def _bind_to(barrier: Barrier, session: Session) -> Engine | Connection:
    try:
        return session.get_bind(clause=route_of(session, barrier.routed_by))
    except UnboundExecutionError as error:
        raise TransactionRefused(
            "the session has databases for its classes or tables only, so that of the barrier is "
            "unknown: guard the connection to the one that the message is about: "
            "guard(session.connection(bind_arguments={'mapper': ...}))"
        ) from error


def connections_of(caller: Session | Connection) -> Sequence[Connection]:
    """Return the connections on which a caller's transaction has begun."""
    if isinstance(caller, Connection):
        return [caller]
    return list(begun_connections(caller.get_transaction()))


def savepoints_of(transaction: Session | Connection) -> tuple[object, ...]:
    """Return the open savepoints: their names for a connection, all transactions for a session."""
    if isinstance(transaction, Session):
        return tuple(enclosing(transaction))
    found: list[object] = []
    savepoint = transaction.get_nested_transaction()
    while savepoint is not None:
        found.append(savepoint._savepoint)  # noqa: SLF001  SQLAlchemy's events name them
        savepoint = savepoint._previous_nested  # noqa: SLF001  there is no public way
    return tuple(found)
