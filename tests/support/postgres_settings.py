"""Settings of a PostgreSQL session."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

IDLE_LIMIT: Final = "idle_in_transaction_session_timeout"
"""The server ends a session whose client is silent in a transaction for this long."""


def setting(connection: Connection, name: str) -> str:
    """Return a setting as SHOW prints it: 0 for none, 90s, 10min."""
    return str(connection.scalar(text(f"SHOW {name}")))
