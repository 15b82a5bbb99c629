"""The purge over SQLAlchemy."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Delete, Engine, Insert, Table

from shieldtx.domain.events import first_id_of
from shieldtx.domain.states import INBOX, OUTBOX
from shieldtx.ports.retention import Purged
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import audit, barrier, discards, trace
from shieldtx.store.statements import retention as sql
from shieldtx.store.tables import Tables

FIRST_ID: Final = UUID(int=0)
LAST_ID: Final = UUID(int=2**128 - 1)
CLOCK_SKEW: Final = timedelta(days=1)
"""The most that a writer's clock may be ahead, for the times in its ids to be trusted."""


class SqlRetentionStore:
    """Purges along the primary key, whose ids grow with time (the port RetentionStore).

    The purge skips ids that are too young. Ids of the future are not UUIDv7, or come from a wrong
    clock, so their age is unknown: they come last. Rows that a compensation may still need stay,
    whatever their age.
    """

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._reached: dict[str, UUID] = {}

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove expired rows among the next `limit` outbox rows."""
        needed = sql.is_needed_in_outbox(self._tables)
        return self._purge(self._tables.outbox, OUTBOX.purgeable, needed, older_than, limit)

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove expired rows among the next `limit` inbox rows."""
        needed = sql.is_needed_in_inbox(self._tables)
        return self._purge(self._tables.inbox, INBOX.purgeable, needed, older_than, limit)

    def purge_barrier(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove up to `limit` rows whose messages were prepared that long ago."""
        statement = barrier.purge(
            self._tables,
            self._dialect,
            older_than=older_than,
            upto=_id_made(older_than),
            limit=limit,
        )
        return self._remove(statement, limit)

    def purge_parked(
        self, *, older_than: timedelta, waiting: timedelta | None, limit: int
    ) -> Purged:
        """Remove up to `limit` parked records that were discarded, or that wait for too long."""
        statement = discards.purge_parked(
            self._tables, self._dialect, older_than=older_than, waiting=waiting, limit=limit
        )
        return self._remove(statement, limit)

    def purge_audit(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove expired entries among the `limit` oldest audit entries."""
        statement = audit.purge(self._tables, self._dialect, older_than=older_than, limit=limit)
        return self._remove(statement, limit)

    def purge_trace(self, *, older_than: timedelta, keep: int, limit: int) -> Purged:
        """Remove expired or surplus entries among the `limit` oldest trace entries."""
        statement = trace.purge(
            self._tables, self._dialect, older_than=older_than, keep=keep, limit=limit
        )
        return self._remove(statement, limit)

    def _remove(self, statement: Delete, limit: int) -> Purged:
        with self._engine.begin() as connection:
            removed = connection.execute(statement).rowcount
        return Purged(removed=removed, more=removed == limit)

    def _purge(
        self,
        table: Table,
        purgeable: Collection[str],
        needed: ColumnElement[bool],
        older_than: timedelta,
        limit: int,
    ) -> Purged:
        after, too_young = self._reached.get(table.name, FIRST_ID), _id_made(older_than)
        upto = too_young if after < too_young else LAST_ID
        with self._engine.begin() as connection:
            end = connection.scalar(sql.end_of_batch(table, after=after, upto=upto, limit=limit))
            statement = sql.purge(
                table,
                self._dialect,
                status=purgeable,
                older_than=older_than,
                after=after,
                upto=upto if end is None else end,
                limit=limit,
                needed=needed,
            )
            removed = connection.execute(statement).rowcount
            if removed:
                connection.execute(self._note(table, older_than))
        after_the_span = FIRST_ID if upto == LAST_ID else _id_made(-CLOCK_SKEW)
        reached = after_the_span if end is None else end
        self._reached[table.name] = reached
        return Purged(removed=removed, more=reached != FIRST_ID)

    def _note(self, table: Table, older_than: timedelta) -> Insert:
        """Return the record of the purge, to run last so that its lock is released at once."""
        name = table.name.removeprefix("shield_")
        return sql.note_purged(
            self._tables, self._dialect, purged_table=name, older_than=older_than
        )


def _id_made(ago: timedelta) -> UUID:
    return first_id_of(time.time() - ago.total_seconds())
