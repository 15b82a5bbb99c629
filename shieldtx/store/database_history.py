"""Asks a PostgreSQL by what it is known again, and whether it still has what it had."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, Engine, Table, exists, select, text

from shieldtx.domain.events import first_id_of
from shieldtx.ports.database_history import DatabaseHistory
from shieldtx.store.tables import Tables

# The write-ahead log's files are named by the timeline, and it is known without any privilege. The
# record of the last checkpoint would know a promotion only some time after it.
_HERE: Final = text("""
    SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE
               left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END AS timeline,
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database,
           to_regclass(:outbox)::oid::bigint AS outbox, to_regclass(:inbox)::oid::bigint AS inbox,
           has_function_privilege('pg_control_system()', 'EXECUTE') AS may_ask,
           clock_timestamp() AS now""")
_SYSTEM: Final = text("SELECT system_identifier::text FROM pg_control_system()")
_CLOCK_SKEW: Final = timedelta(days=1)


class SqlDatabaseHistory:
    """The history of the database that holds a service's tables."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables

    def now(self) -> DatabaseHistory:
        """Return it as it stands."""
        outbox, inbox = self._tables.outbox, self._tables.inbox
        with self._engine.connect() as connection:
            names = {"outbox": _name(outbox), "inbox": _name(inbox)}
            here = connection.execute(_HERE, names).one()
            # One that is made otherwise, without the time, may lie above all ids that come.
            soon = first_id_of((here.now + _CLOCK_SKEW).timestamp())
            return DatabaseHistory(
                system=connection.scalars(_SYSTEM).one() if here.may_ask else None,
                timeline=here.timeline,
                objects=(here.database, here.outbox, here.inbox),
                newest=(_newest(connection, outbox, soon), _newest(connection, inbox, soon)),
            )

    def lacks(self, earlier: DatabaseHistory) -> tuple[str, ...]:
        """Return which of the tables, `outbox` or `inbox`, lack what was their newest row."""
        both = (("outbox", self._tables.outbox), ("inbox", self._tables.inbox))
        with self._engine.connect() as connection:
            return tuple(
                name
                for (name, table), newest in zip(both, earlier.newest, strict=True)
                if newest is not None
                and not connection.scalars(select(exists().where(table.c.event_id == newest))).one()
            )


def _newest(connection: Connection, table: Table, before: UUID) -> UUID | None:
    return connection.scalars(
        select(table.c.event_id)
        .where(table.c.event_id < before)
        .order_by(table.c.event_id.desc())
        .limit(1)
    ).one_or_none()


def _name(table: Table) -> str:
    """Return the name as `to_regclass` reads it."""
    quoted = f'"{table.name}"'
    return quoted if table.schema is None else f'"{table.schema}".{quoted}'
