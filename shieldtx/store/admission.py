"""Whether a caller's transaction can take rows of shieldtx, and whether it has written."""

from __future__ import annotations

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import DBAPIError

from shieldtx.errors import TransactionRefused
from shieldtx.store.dialects import dialect_of, is_known


def admit(connection: Connection, table: Table, *, or_else: str) -> None:
    """Raise TransactionRefused for a connection in AUTOCOMMIT; `or_else` names the consequence.

    Raise it too if `schema_translate_map` redirects the table: relays would not find the row.
    """
    if dialect_of(connection.dialect).is_autocommit(connection):
        raise TransactionRefused(
            f"the connection is in AUTOCOMMIT, so {or_else}; use a connection with transactions"
        )
    redirected = connection.get_execution_options().get("schema_translate_map") or {}
    if table.schema in redirected:
        there = redirected[table.schema]
        raise TransactionRefused(
            f"the connection's schema_translate_map redirects {table.fullname} to schema {there}, "
            "where no relay of this service looks: set SHIELDTX_DATABASE_SCHEMA to the schema of "
            "shieldtx's tables, which the map must not name"
        )


def require_two_phases(connection: Connection) -> None:
    """Raise TransactionRefused for a server that prepares no transactions.

    Its own error would come after the session has begun to commit, and the session of psycopg could
    then neither commit nor roll back.
    """
    # The driver of SQLite has no commit in two phases.
    if connection.dialect.name != "postgresql":
        return
    if not int(connection.scalar(select(func.current_setting("max_prepared_transactions"))) or 0):
        raise TransactionRefused(
            "the session commits in two phases (twophase=True), for which its server must have "
            "max_prepared_transactions above 0, and it is 0: data and event are rolled back. Set "
            "it and restart the server, or use a session for each database"
        )


def may_have_written(connection: Connection) -> bool:
    """Whether the open transaction may have changed its database; True for unknown databases.

    Raises TransactionRefused if the server cannot be queried.
    """
    if not is_known(connection.dialect):
        return True
    try:
        return dialect_of(connection.dialect).may_have_written(connection)
    except DBAPIError as error:
        raise TransactionRefused(
            "a statement failed over another connection of the session, so its part of the "
            "transaction is rolled back, and whether anything is lost with it is unknown: run what "
            "may fail in a savepoint or in a session of its own"
        ) from error
