"""The state of PostgreSQL's transactions, from libpq and from the server."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Boolean, Connection, Update, func, literal_column, select, text

from shieldtx.store.dialects.protocol import OF_MARK

_IDLE, _IN_ERROR = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR."""

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
        return _transaction_status(connection) == _IDLE

    def is_aborted(self, connection: Connection) -> bool:
        return _transaction_status(connection) == _IN_ERROR

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


def _transaction_status(connection: Connection) -> int:
    """Return libpq's status of the connection, without a query to the server."""
    status: int = connection.connection.dbapi_connection.info.transaction_status  # type: ignore[union-attr]
    return status
