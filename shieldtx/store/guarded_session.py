"""A Session for user code in a transaction that shieldtx alone may end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, Engine, Executable, RootTransaction, event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.domain.sql import ends_transaction
from shieldtx.errors import HandlerError
from shieldtx.store.dialects import LOCKED_AT, TRANSACTION, dialect_of

_GUARD = "shieldtx.guard"
"""The key of a session's info with its guard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Guard:
    """The transaction of a guarded session as it began, and whose code runs in it."""

    owner: str
    connection: Connection
    begun: SessionTransaction
    root: RootTransaction | None

    @property
    def violation(self) -> HandlerError:
        return HandlerError(
            f"the {self.owner} ended the transaction that it was called with: leave commit, "
            "rollback and close to shieldtx"
        )


@contextmanager
def guarded_session(engine: Engine, owner: str) -> Iterator[tuple[Session, Connection]]:
    """Open a session in a transaction that ends with the block; errors name the `owner`."""
    with Session(engine) as session, session.begin() as begun:
        connection = session.connection()
        session.info[_GUARD] = _Guard(
            owner=owner,
            connection=connection,
            begun=begun,
            root=connection.get_transaction(),
        )
        yield session, connection


@contextmanager
def commits_refused(session: Session) -> Iterator[None]:
    """Reject every COMMIT of the guarded session inside the block with a HandlerError.

    Otherwise the owner would commit what shieldtx has written, without what is written later. A
    statement that ends the transaction is rejected as well: SQLAlchemy would not notice its end.
    """
    guard: _Guard = session.info[_GUARD]

    def reject_commit(connection: Connection) -> None:
        # After an error in this event, SQLAlchemy may return the connection with its transaction
        # open.
        connection.connection.rollback()
        raise guard.violation

    def reject_statement(_connection: Any, _cursor: Any, statement: str, *_how: Any) -> None:
        if ends_transaction(statement):
            raise guard.violation

    listeners = (("commit", reject_commit), ("before_cursor_execute", reject_statement))
    for name, listener in listeners:
        event.listen(guard.connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(guard.connection, name, listener)


class LockedRows(NamedTuple):
    """The rows that a guarded transaction settles at its end, locked before user code runs."""

    number: int
    locked_at: datetime | None
    """By the database's clock."""
    transaction: str | None
    """The id of the transaction, where the database has one."""


def lock_rows(
    connection: Connection, statement: Executable, parameters: Mapping[str, Any]
) -> LockedRows:
    """Lock the rows that are to be settled, by a statement of `Dialect.lock_rows`."""
    found = connection.execute(statement, parameters).all()
    if not found:
        return LockedRows(0, None, None)
    dialect_of(connection.dialect).mark_transaction(connection)
    return LockedRows(sum(row[0] for row in found), *found[0][1:])


def settle(
    session: Session, rows: LockedRows, statement: Executable, parameters: Mapping[str, Any]
) -> None:
    """Settle the locked rows; raises HandlerError where the transaction is not that of the lock.

    Only this detects a COMMIT by way of the driver that further statements followed. The owner's
    writes until then are committed; the rows stay as they are.
    """
    check_intact(session)
    guard: _Guard = session.info[_GUARD]
    if not dialect_of(guard.connection.dialect).is_marked_transaction(guard.connection):
        raise guard.violation
    given = {LOCKED_AT: rows.locked_at, TRANSACTION: rows.transaction, **parameters}
    settled: CursorResult[Any] = guard.connection.execute(statement, given)
    if settled.rowcount != rows.number:
        raise guard.violation


def release_savepoints(session: Session) -> None:
    """Release the savepoints that the owner has left open, as the COMMIT would.

    The next owner of the transaction could roll them back.
    """
    while (of_session := session.get_nested_transaction()) is not None:
        of_session.commit()
    guard: _Guard = session.info[_GUARD]
    while (of_connection := guard.connection.get_nested_transaction()) is not None:
        of_connection.commit()


def check_intact(session: Session) -> None:
    """Raise HandlerError when the owner has ended or broken the guarded session's transaction.

    A COMMIT would then succeed without the writes of shieldtx.
    """
    guard: _Guard = session.info[_GUARD]
    begun, connection = guard.begun, guard.connection
    if session.get_transaction() is not begun or not begun.is_active:
        raise guard.violation
    root = connection.get_transaction()
    if root is not guard.root or root is None or not root.is_active:
        raise guard.violation
    dialect = dialect_of(connection.dialect)
    if dialect.has_ended(connection):
        # By way of the driver, past SQLAlchemy.
        raise guard.violation
    if dialect.is_aborted(connection):
        raise HandlerError(
            f"the {guard.owner} went on after an error of the database, which had ended its "
            "transaction: let the error out, or try the statement in session.begin_nested()"
        )
