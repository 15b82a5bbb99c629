"""Which savepoints of a connection are those of a session, made by its begin_nested()."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.engine import Transaction
from sqlalchemy.orm import Session, SessionTransaction

_SQLALCHEMYS: Final = "sa_savepoint_"
"""The prefix of the names of SQLAlchemy's savepoints."""


def enclosing(session: Session) -> Iterator[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def is_in_unknown_savepoint(session: Session, connection: Connection) -> bool:
    """Whether the connection's innermost savepoint was set without the session."""
    if not connection.in_nested_transaction():
        return False
    innermost = connection.get_nested_transaction()
    return all(innermost is not each for each in _savepoints(session))


def sets_savepoint(session: Session, name: str) -> bool:
    """Whether a savepoint of this name is the session's, or is about to be its next one."""
    if not name.startswith(_SQLALCHEMYS):
        return False
    innermost = session.get_nested_transaction()
    # The session notes a savepoint when the database has set it.
    if innermost is not None and not innermost._connections:  # noqa: SLF001  as in _savepoints
        return True
    return any(name == getattr(each, "_savepoint", None) for each in _savepoints(session))


def _savepoints(session: Session) -> Iterator[Transaction]:
    for transaction in enclosing(session):
        if transaction.nested:
            # No other API tells which of a connection's transactions is a session's.
            for _, each, *_ in transaction._connections.values():  # noqa: SLF001
                yield each
