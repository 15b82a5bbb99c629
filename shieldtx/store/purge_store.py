"""The purge over SQLAlchemy."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from sqlalchemy import Delete, Engine

from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import purge as sql
from shieldtx.store.tables import Tables

CLOCK_SLACK = timedelta(hours=25)
"""How far writers' clocks may be ahead of the database's before rows stay longer than asked."""


class SqlPurgeStore:
    """Removes settled rows in batches (the port PurgeStore)."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to `limit` outbox rows."""
        return self._run(
            sql.purge_outbox(
                self._tables,
                self._dialect,
                older_than=older_than,
                below=_first_id_after(older_than - CLOCK_SLACK),
                limit=limit,
            )
        )

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to `limit` inbox rows."""
        return self._run(
            sql.purge_inbox(
                self._tables,
                self._dialect,
                older_than=older_than,
                below=_first_id_after(older_than - CLOCK_SLACK),
                limit=limit,
            )
        )

    def _run(self, statement: Delete) -> int:
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount


def _first_id_after(age: timedelta) -> UUID:
    """Return the smallest UUIDv7 (RFC 9562: 48 bits of milliseconds first) made `age` ago."""
    milliseconds = max(0, int((time.time() - age.total_seconds()) * 1000))
    return UUID(int=milliseconds << 80)
