"""The transactions of a session, and the savepoints of its connection that are not among them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction


def enclosing(session: Session) -> Iterator[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def is_in_unknown_savepoint(session: Session, connection: Connection) -> bool:
    """Whether a savepoint of the connection was set without the session's begin_nested()."""
    known = {
        id(savepoint)
        for transaction in enclosing(session)
        for _, savepoint, *_ in transaction._connections.values()  # noqa: SLF001  no other API
    }
    savepoint = connection.get_nested_transaction()
    while savepoint is not None:
        if id(savepoint) not in known:
            return True
        savepoint = savepoint._previous_nested  # noqa: SLF001  no other API
    return False
