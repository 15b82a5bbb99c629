"""The limit of a client's silence in a transaction: then the server ends it, with its locks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, Engine, event

from shieldtx.store.dialects import dialect_of

SHORTEST: Final = timedelta(seconds=3)
"""The time that a process on a busy machine may need from one statement to the next."""

_LIMIT: Final = "shieldtx.idleness"
"""An option of an engine: a function that returns the limit for transactions that begin now."""


def limited_view(engine: Engine, *, idle: timedelta) -> Engine:
    """Return a view of an engine whose transactions end when their client is silent for `idle`.

    This limit prevails over the engine's limit, and costs one statement per transaction.
    """
    view = engine.execution_options()
    limit_each_transaction(view, lambda: idle)
    return view


def limit_each_transaction(engine: Engine, idle: Callable[[], timedelta]) -> None:
    """Make an engine's transactions end when their client is silent for `idle`."""
    is_limited = _LIMIT in engine.get_execution_options()
    engine.update_execution_options(**{_LIMIT: idle})
    if not is_limited:
        # A view has the listeners of its engine too.
        event.listen(engine, "begin", _set_limit)


def _set_limit(connection: Connection) -> None:
    dialect = dialect_of(connection.dialect)
    if dialect.is_autocommit(connection):
        return
    try:
        dialect.limit_idleness(connection, connection.get_execution_options()[_LIMIT]())
    except BaseException:
        # After an error in this event, SQLAlchemy never begins a transaction on this connection
        # again: its next statements would be lost without an error.
        connection.close()
        raise
