"""Marks in a caller's transaction: a PostgreSQL setting that a rollback resets."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import Connection, TextClause, text

from shieldtx.errors import TransactionRefused
from shieldtx.ports.transaction_marks import TransactionState
from shieldtx.store.dialects import OF_MARK, dialect_of
from shieldtx.store.dialects.postgresql_state import transaction_state

_SETTING: Final = "shieldtx.marks"
_MARKED = text(f"SELECT current_setting('{_SETTING}', true)")
# Several sessions may share a connection: each replaces its own mark only.
_MARK = text(
    f"""
    SELECT current_setting('{_SETTING}', true), set_config('{_SETTING}',
        regexp_replace(coalesce(current_setting('{_SETTING}', true), ''), :of_owner, '') || :mark,
        true)
    """
)


class SqlTransactionMarks:
    """Marks transactions on PostgreSQL (the port TransactionMarks).

    On SQLite the state is unknown: its driver begins and ends transactions by itself.
    """

    def state(self, connection: Connection) -> TransactionState:
        """Return the state of the transaction in the driver."""
        if not _is_postgresql(connection):
            return TransactionState.UNKNOWN
        return transaction_state(connection)

    def is_in_block(self, connection: Connection) -> bool:
        """Whether psycopg has an open `with connection.transaction()`, which makes savepoints."""
        driver: Any = connection.connection.driver_connection
        return bool(getattr(driver, "_num_transactions", 0))

    def mark(self, connection: Connection, *, owner: int, number: int) -> int | None:
        """Set the owner's mark, and return the mark before; None on SQLite."""
        if not _is_postgresql(connection):
            return None
        given = {"of_owner": f" {owner}:[0-9]+;", "mark": f" {owner}:{number};"}
        before, _ = _run(connection, _MARK, given)
        return _mark_of(owner, before)

    def marked(self, connection: Connection, *, owner: int) -> int:
        """Return the owner's mark."""
        if not _is_postgresql(connection):
            return 0
        (marks,) = _run(connection, _MARKED, {})
        return _mark_of(owner, marks)


def _is_postgresql(connection: Connection) -> bool:
    return dialect_of(connection.dialect).name == "postgresql"


def _run(connection: Connection, statement: TextClause, given: dict[str, str]) -> tuple[Any, ...]:
    # The caller's connection may fetch through a server-side cursor.
    options = {"stream_results": False, OF_MARK: True}
    result = connection.execute(statement, given, execution_options=options)
    if result.returns_rows:
        return tuple(result.one())
    raise TransactionRefused(
        "the connection is in a pipeline of its driver, whose answers come too late to know what "
        "a savepoint or a block in it undoes with its events: use these outside of the pipeline"
    )


def _mark_of(owner: int, marks: str | None) -> int:
    found = re.search(rf" {owner}:([0-9]+);", marks or "")
    return int(found[1]) if found else 0
