"""The state of PostgreSQL's transactions: as libpq knows it, and as the server does."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

IDLE, IN_ERROR = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR."""

_NEW_TEMPORARY: Final = text(
    """
    SELECT CASE WHEN pg_my_temp_schema() = 0 THEN false ELSE EXISTS (
        SELECT FROM pg_catalog.pg_class
        WHERE relnamespace = pg_my_temp_schema()
          AND age(xmin) <= age(cast(pg_current_xact_id() AS xid))
    ) END
    """
)
"""The ids of its savepoints are younger than the transaction's own."""


def transaction_status(connection: Connection) -> int:
    """Return libpq's status of the connection, without asking the server."""
    status: int = connection.connection.dbapi_connection.info.transaction_status  # type: ignore[union-attr]
    return status


def has_made_temporary(connection: Connection) -> bool:
    """Whether the open transaction has made temporary tables that are still there."""
    return bool(connection.scalar(_NEW_TEMPORARY))
