"""Creation and checks of the tables, for `shieldtx db` and for a host's migrations."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.schema import SchemaItem

from shieldtx.errors import ConfigurationError
from shieldtx.store.dialects import dialect_of
from shieldtx.store.downgrade_plan import DowngradePlan, plan_downgrade
from shieldtx.store.migration_scripts import BASE
from shieldtx.store.migrations import OWN_TABLES, VERSION_TABLE, Migrations
from shieldtx.store.offline import OfflineUpgrade
from shieldtx.store.schema_settings import DEFAULT_SHARDS, MAX_SHARDS
from shieldtx.store.sequences import check_sequences
from shieldtx.store.tables import tables
from shieldtx.store.upgrades import PATIENCE, Notice, OnlineUpgrade


def include_object(
    item: SchemaItem,  # noqa: ARG001  Alembic's signature
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: ARG001, FBT001  Alembic's signature
    compare_to: SchemaItem | None,  # noqa: ARG001  Alembic's signature
) -> bool:
    """Exclude shieldtx's tables from a host's autogenerate, in its metadata or not.

    Only for an env.py whose `autogenerate_plugins` leave out the plugin of shieldtx, which does the
    same: `context.configure(..., include_object=include_object)`.
    """
    return not (type_ == "table" and name in OWN_TABLES)


def include_name(
    name: str | None,
    type_: str,
    parent_names: MutableMapping[Any, str | None],  # noqa: ARG001  Alembic's signature
) -> bool:
    """Let a host's autogenerate compare the tables that `tables(metadata=...)` put in its metadata.

    Only the version table is excluded, which is in no metadata. The plugin of shieldtx, which
    excludes all tables, then does nothing. In the host's env.py:
    `context.configure(..., include_name=include_name)`.
    """
    return not (type_ == "table" and name == VERSION_TABLE)


class Schema:
    """Creates, upgrades and checks the tables of shieldtx in one schema of a database."""

    def __init__(
        self, engine: Engine, *, schema: str | None = None, shards: int | None = None
    ) -> None:
        """Expect tables with `shards` shards, or any number (None: 64 in new tables)."""
        self._engine = engine
        self._schema = schema
        self._shards = shards

    def upgrade(
        self,
        revision: str = "head",
        *,
        patience: timedelta = PATIENCE,
        notice: Notice | None = None,
    ) -> None:
        """Upgrade the tables to `revision`; concurrent calls are safe.

        The first installation is one transaction. Later, each revision is one transaction, and
        writers wait for a fraction of a second at most. The next call continues an interrupted
        upgrade. `notice`, or the log, gets a line about each step and each wait.

        Raises SchemaMismatch, without any change, for tables of a newer shieldtx or of another
        number of shards. Raises ConfigurationError for an invalid schema, shards or revision.
        Raises UpgradeBlocked if other transactions lock the tables for longer than `patience`.
        """
        if self._is_in_use():
            self._online(patience, notice).up(revision)
        else:
            with self._begin() as connection:
                upgrade_with(
                    connection, schema=self._schema, shards=self._shards, revision=revision
                )

    def upgrade_sql(
        self, revision: str = "head", *, start: str = BASE, server_version: int | None = None
    ) -> str:
        """Return the SQL of an upgrade from revision `start`, for PostgreSQL; nothing connects.

        From `base` it creates the tables in one transaction. From a later revision, each revision
        is a transaction, and indexes are built concurrently afterwards. Each transaction refuses
        tables at another revision, and waits for at most 3 s for a lock. `server_version` is the
        major version of the server, for SQL that depends on it.

        Raises ConfigurationError for another database, and for an invalid schema, shards, revision
        or version.
        """
        dialect = dialect_of(self._engine.dialect)
        if not dialect.migrates_online:
            raise ConfigurationError(
                f"there is no SQL of an upgrade for {dialect.name}: run `shieldtx db upgrade`"
            )
        _check_shards(self._shards)
        return OfflineUpgrade(
            schema=self._schema,
            shards=self._shards,
            new_shards=self._shards or DEFAULT_SHARDS,
            server_version=server_version,
        ).sql(start, revision)

    def downgrade(
        self,
        revision: str,
        *,
        patience: timedelta = PATIENCE,
        notice: Notice | None = None,
    ) -> None:
        """Take the tables back to `revision`; `base` drops them with all their rows.

        Works and raises like `upgrade`. Raises SchemaMismatch, without any change, also for rows
        that the older release could not handle.
        """
        if revision != BASE and self._is_in_use():
            self._online(patience, notice).down(revision)
        else:
            with self._begin() as connection:
                downgrade_with(connection, schema=self._schema, revision=revision)

    def plan_downgrade(self, revision: str) -> DowngradePlan:
        """Return what a downgrade to `revision` would drop; nothing changes.

        Raises like `downgrade`.
        """
        with self._begin() as connection:
            return plan_downgrade(connection, self._schema, revision)

    def current(self) -> str | None:
        """Return the revision of the tables, None if there are no tables."""
        with self._engine.connect() as connection:
            return Migrations(connection, self._schema).current()

    def check(self) -> None:
        """Raise SchemaMismatch, with the remedy, unless this shieldtx fits the tables."""
        with self._engine.connect() as connection:
            migrations = Migrations(connection, self._schema)
            migrations.check()
            migrations.refuse_other_shards(self._shards)

    def check_tables(self) -> None:
        """Raise SchemaMismatch for tables of another version; any number of shards is accepted."""
        with self._engine.connect() as connection:
            Migrations(connection, self._schema).check()

    def check_sequences(self) -> None:
        """Raise SchemaMismatch, with the remedy, if new events would get numbers below others.

        The cause is a switch-over to another server that did not copy the sequences.
        """
        d = dialect_of(self._engine.dialect)
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level=d.engine_isolation)
            check_sequences(connection, tables(self._schema))

    def _is_in_use(self) -> bool:
        return dialect_of(self._engine.dialect).migrates_online and self.current() is not None

    def _online(self, patience: timedelta, notice: Notice | None) -> OnlineUpgrade:
        return OnlineUpgrade(
            self._engine,
            schema=self._schema,
            shards=self._shards,
            patience=patience,
            notice=notice,
        )

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        isolation = dialect_of(self._engine.dialect).engine_isolation
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level=isolation)
            with connection.begin():
                yield connection


def upgrade_with(
    connection: Connection,
    *,
    schema: str | None = None,
    shards: int | None = None,
    revision: str = "head",
) -> None:
    """Upgrade the tables to `revision` in the caller's transaction.

    `shards` is the number of shards of new tables (None: 64), and must match existing tables. For a
    host's migration script: `upgrade_with(op.get_bind(), schema="...")`.

    If the tables are in use, all writers wait until the transaction ends. The transaction waits for
    readers, holds exclusive locks, and builds indexes of large tables. `shieldtx db upgrade` avoids
    this: run it before the host's migrations, which then have nothing left to do.

    Raises like `Schema.upgrade`, TransactionRefused for a connection in autocommit, and
    ConfigurationError without a connection, in `alembic upgrade --sql`.
    """
    _check_shards(shards)
    migrations = Migrations(connection, schema)
    migrations.begin()
    migrations.make_schema()
    if migrations.current() is not None:
        migrations.refuse_newer()
        migrations.refuse_other_shards(shards)
        migrations.finish(migrations.unfinished(), online=False)
    migrations.run(migrations.steps_up(revision), shards=shards or DEFAULT_SHARDS)


def _check_shards(shards: int | None) -> None:
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise ConfigurationError(f"shards: {shards} is out of range; use 1 to {MAX_SHARDS}")


def downgrade_with(
    connection: Connection, *, schema: str | None = None, revision: str = BASE
) -> None:
    """Take the tables back to `revision` in the caller's transaction: for a host's downgrade.

    `base` drops the tables with all rows, and the schema if shieldtx made it and it is then empty.
    Raises like `upgrade_with`.
    """
    migrations = Migrations(connection, schema)
    migrations.begin()
    if migrations.current() is not None:
        migrations.refuse_newer()
        steps = migrations.steps_down(revision)
        migrations.refuse_losses(steps)
        migrations.run(steps, shards=0)
    if migrations.current() is None:
        migrations.clear()
