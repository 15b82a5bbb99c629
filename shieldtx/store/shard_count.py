"""The number of shards: a property of the tables, which writers and relays read from them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Pool
from sqlalchemy.exc import IntegrityError

from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import shard_leases
from shieldtx.store.tables import Tables

CONSTRAINT = "shield_outbox_shard_check"


class ShardCount:
    """Reads the number of shards once for each database that this process is connected to.

    A row in a wrong shard for its key would be sent out of order, or never.
    """

    def __init__(self, tables: Tables, *, setting: int | None = None) -> None:
        """Expect the number of `setting`; None accepts any number."""
        self._tables = tables
        self._setting = setting
        self._read: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()

    def of(self, connection: Connection) -> int:
        """Return the number of shards of the tables that the connection reaches.

        Raises ConfigurationError if the setting differs, SchemaMismatch if the tables lack the
        number.
        """
        pool = connection.engine.pool
        found = self._read.get(pool)
        if found is None:
            found = self._read[pool] = self._ask(connection)
        return found

    def refuse(self, error: IntegrityError, connection: Connection) -> None:
        """Raise ConfigurationError for a row with a wrong shard; the next call reads the number."""
        # PostgreSQL and SQLite both name the constraint.
        if CONSTRAINT in str(error.orig):
            before = self._read.pop(connection.engine.pool, None)
            raise ConfigurationError(
                f"{self._tables.outbox.fullname} has another number of shards than the {before} "
                "that this process has read before: the tables were recreated; try again"
            ) from error

    def refuse_unleased(self, connection: Connection, *, leased: int) -> None:
        """Raise SchemaMismatch if some shards have no lease row: no relay can own them."""
        made_for = self.of(connection)
        if leased != made_for:
            raise SchemaMismatch(
                f"{self._tables.outbox.fullname} was made for {made_for} shards, but "
                f"{self._tables.shard.fullname} has {leased} rows: restore it from a backup"
            )

    def _ask(self, connection: Connection) -> int:
        t, name = self._tables, self._tables.outbox.fullname
        made_for = connection.scalar(shard_leases.shard_count(t, dialect_of(connection.dialect)))
        if not made_for:
            raise SchemaMismatch(
                f"{name} does not exist, or its number of shards is unknown: run `shieldtx db "
                "upgrade`, or reset the path if the transaction has changed its search_path"
            )
        if self._setting not in {None, made_for}:
            raise other_number(name, made_for=made_for, setting=self._setting)
        return int(made_for)


def other_number(table: str, *, made_for: int, setting: int | None) -> ConfigurationError:
    """Return the error of a setting that differs from the tables."""
    return ConfigurationError(
        f"SHIELDTX_SHARDS is {setting}, but {table} was made for {made_for} shards: remove the "
        f"setting, or set it to {made_for} (the number is fixed when the tables are made)"
    )
