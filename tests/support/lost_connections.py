"""Connections that are lost while a test uses them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session


def cut(local: Session | Connection, *, by: Engine) -> None:
    """Terminate the server process of a psycopg connection, and wait until it has exited.

    No statement runs over the connection itself, so that its client does not notice.
    """
    connection = local.connection() if isinstance(local, Session) else local
    driver: Any = connection.connection.driver_connection
    with by.connect() as other:
        ended = text("SELECT pg_terminate_backend(:pid, 10000)")
        assert other.scalar(ended, {"pid": driver.info.backend_pid})
