"""The state of PostgreSQL's transactions, from libpq and from the server."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Boolean, Connection, Update, func, literal_column, select, text
from sqlalchemy.exc import DBAPIError

from shieldtx.ports.transaction_marks import TransactionState
from shieldtx.store.dialects.protocol import OF_MARK

_STATES: Final = {
    # libpq's numbers (psycopg and psycopg2), and the letters of the protocol (pg8000)
    0: TransactionState.NONE,
    1: TransactionState.OPEN,
    2: TransactionState.OPEN,
    3: TransactionState.FAILED,
    b"I": TransactionState.NONE,
    b"T": TransactionState.OPEN,
    b"E": TransactionState.FAILED,
}
_ENDED: Final = {TransactionState.NONE, TransactionState.ENDED}

_NOTHING: Final = text("SELECT 1")
_IN_FAILED_TRANSACTION: Final = "25P02"
"""PostgreSQL's SQLSTATE of a statement after an error in its transaction."""

_MADE_TEMPORARY: Final = literal_column(
    """
    CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
        SELECT FROM pg_catalog.pg_class
        WHERE relnamespace = pg_my_temp_schema()
          AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
    ) END
    """,
    Boolean(),
)
"""Whether the transaction made a temporary table; the ids of its savepoints are younger."""
_KEEPS_TEMPORARY: Final = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = pg_my_temp_schema())
"""

_MARK_EFFECT: Final = text("SELECT set_config('shieldtx.effect', :number, true)")
_EFFECT: Final = text("SELECT current_setting('shieldtx.effect', true)")


class Transactions:
    """The methods of a dialect for transactions in which a user's function runs."""

    def mark_transaction(self, connection: Connection) -> None:
        """Do nothing: the id of the transaction shows whether it has ended."""

    def is_marked_transaction(self, connection: Connection) -> bool:
        return True

    def mark_effect(self, connection: Connection, number: int) -> None:
        # The handler's connection may fetch through a server-side cursor.
        options = {"stream_results": False, OF_MARK: True}
        connection.execute(_MARK_EFFECT, {"number": str(number)}, execution_options=options)

    def has_effect(self, connection: Connection, number: int) -> bool:
        options = {"stream_results": False}
        found = connection.scalar(_EFFECT, execution_options=options)
        return bool(found == str(number))

    def has_ended(self, connection: Connection) -> bool:
        return transaction_state(connection) in _ENDED

    def is_aborted(self, connection: Connection) -> bool:
        if is_asyncpg(connection):
            return _is_refused(connection)
        return transaction_state(connection) is TransactionState.FAILED

    def has_made_temporary(self, connection: Connection) -> bool:
        options = {"stream_results": False}
        return bool(connection.scalar(select(_MADE_TEMPORARY), execution_options=options))

    def returning_made_temporary(self, settled: Update) -> Update:
        return settled.returning(_MADE_TEMPORARY)

    def keeps_temporary(self, connection: Connection) -> bool:
        # Through the driver: the session and its connection are between two transactions.
        cursor = connection.connection.cursor()
        try:
            cursor.execute(_KEEPS_TEMPORARY)
            return bool((cursor.fetchone() or (False,))[0])
        finally:
            cursor.close()

    def may_have_written(self, connection: Connection) -> bool:
        xid = func.pg_current_xact_id_if_assigned()
        return bool(connection.scalar(select(xid.is_not(None))))

    def is_autocommit(self, connection: Connection) -> bool:
        return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


def transaction_state(connection: Connection) -> TransactionState:
    """Return the state of the transaction in the driver, without a query to the server.

    asyncpg does not distinguish a failed transaction from an open one.
    """
    driver: Any = connection.connection.driver_connection
    if is_asyncpg(connection):
        return _state_of_asyncpg(connection, driver)
    info = getattr(driver, "info", None)
    status = getattr(info, "transaction_status", getattr(driver, "_transaction_status", None))
    return _STATES.get(status, TransactionState.UNKNOWN)


def is_asyncpg(connection: Connection) -> bool:
    """Whether the driver is asyncpg, which has an interface of its own."""
    return connection.dialect.driver == "asyncpg"


def _state_of_asyncpg(connection: Connection, driver: Any) -> TransactionState:
    if driver.is_in_transaction():
        return TransactionState.OPEN
    # SQLAlchemy begins its transaction itself, at the first statement, and only once.
    begun = getattr(connection.connection.dbapi_connection, "_transaction", None)
    return TransactionState.NONE if begun is None else TransactionState.ENDED


def _is_refused(connection: Connection) -> bool:
    """Whether the server refuses a statement, because an error has aborted the transaction."""
    try:
        connection.execute(_NOTHING, execution_options={"stream_results": False, OF_MARK: True})
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) == _IN_FAILED_TRANSACTION:
            return True
        raise
    return False
