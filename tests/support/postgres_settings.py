"""What PostgreSQL has set in a session."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

IDLE_LIMIT: Final = "idle_in_transaction_session_timeout"
"""After how long of a client's silence in a transaction the server ends the session."""


def setting(connection: Connection, name: str) -> str:
    """Return a setting as SHOW prints it: 0 for none, 90s, 10min."""
    return str(connection.scalar(text(f"SHOW {name}")))
