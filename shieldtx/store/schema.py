"""Making the tables and checking that they fit: by `shieldtx db` or by a host's migrations."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.schema import SchemaItem

from shieldtx.errors import ConfigurationError
from shieldtx.store.dialects import dialect_of
from shieldtx.store.migrations import OWN_TABLES, VERSION_TABLE, Migrations
from shieldtx.store.sequences import check_sequences
from shieldtx.store.tables import tables
from shieldtx.store.upgrades import PATIENCE, Notice, OnlineUpgrade

DEFAULT_SHARDS = 64
MAX_SHARDS = 32_768
"""What the column `shard`, a smallint, can number."""


def include_object(
    item: SchemaItem,  # noqa: ARG001  Alembic's signature
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: ARG001, FBT001  Alembic's signature
    compare_to: SchemaItem | None,  # noqa: ARG001  Alembic's signature
) -> bool:
    """Keep a host's autogenerate away from shieldtx's tables, in its metadata or not.

    In the host's env.py: `context.configure(..., include_object=include_object)`.
    """
    return not (type_ == "table" and name in OWN_TABLES)


def include_name(
    name: str | None,
    type_: str,
    parent_names: MutableMapping[Any, str | None],  # noqa: ARG001  Alembic's signature
) -> bool:
    """Let a host's autogenerate compare the tables that `tables(metadata=...)` put in its metadata.

    It hides nothing but the version table, which is in no metadata. In the host's env.py:
    `context.configure(..., include_name=include_name)`.
    """
    return not (type_ == "table" and name == VERSION_TABLE)


class Schema:
    """The tables of shieldtx in one schema of a database; made, upgraded and checked."""

    def __init__(
        self, engine: Engine, *, schema: str | None = None, shards: int | None = None
    ) -> None:
        """Expect `shards` of the tables, or any number (None); new ones get it, or 64."""
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
        """Bring the tables to `revision`, however many processes try at once.

        The first installation is one transaction. Later, each revision is one, and writers wait for
        a fraction of a second at most; an upgrade that is interrupted goes on where it was when it
        is called again. `notice` gets a line about each step and each wait; without one, the log.

        Raises SchemaMismatch, having changed nothing, for tables of a newer shieldtx or of another
        number of shards; ConfigurationError for a schema, shards or revision that cannot be;
        UpgradeBlocked when other transactions keep the tables locked for longer than `patience`.
        """
        if self._is_in_use():
            self._online(patience, notice).up(revision)
        else:
            with self._begin() as connection:
                upgrade_with(
                    connection, schema=self._schema, shards=self._shards, revision=revision
                )

    def downgrade(
        self,
        revision: str,
        *,
        patience: timedelta = PATIENCE,
        notice: Notice | None = None,
    ) -> None:
        """Take the tables back to `revision`; `base` drops them with all they hold.

        Works and raises as `upgrade`; SchemaMismatch, having changed nothing, also for rows that
        the older release could not handle.
        """
        if revision != "base" and self._is_in_use():
            self._online(patience, notice).down(revision)
        else:
            with self._begin() as connection:
                downgrade_with(connection, schema=self._schema, revision=revision)

    def current(self) -> str | None:
        """Return the revision of the tables, None where there are none."""
        with self._engine.connect() as connection:
            return Migrations(connection, self._schema).current()

    def check(self) -> None:
        """Raise SchemaMismatch, with what mends it, unless this shieldtx fits the tables."""
        with self._engine.connect() as connection:
            migrations = Migrations(connection, self._schema)
            migrations.check()
            migrations.refuse_other_shards(self._shards)

    def check_tables(self) -> None:
        """Raise SchemaMismatch for tables of another version; their shards may be any number."""
        with self._engine.connect() as connection:
            Migrations(connection, self._schema).check()

    def check_sequences(self) -> None:
        """Raise SchemaMismatch, with the remedy, where new events would be numbered below others.

        It happens where a switch-over to another server did not carry the sequences.
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
    """Bring the tables to `revision` in the caller's transaction.

    `shards` is the number of shards of new tables (None: 64), and has to be that of existing ones.
    For a host's migration script: `upgrade_with(op.get_bind(), schema="...")`.

    Where the tables are in use, all who write to them wait until the transaction ends: it waits for
    their readers, holds exclusive locks, and builds indexes of large tables. `shieldtx db upgrade`
    does not; run it before the host's migrations where that matters, and nothing is left to do.

    Raises as `Schema.upgrade` does, and TransactionRefused for a connection in autocommit.
    """
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise ConfigurationError(f"shards: {shards} is out of range; use 1 to {MAX_SHARDS}")
    migrations = Migrations(connection, schema)
    migrations.begin()
    migrations.make_schema()
    if migrations.current() is not None:
        migrations.refuse_newer()
        migrations.refuse_other_shards(shards)
        migrations.finish(migrations.unfinished(), online=False)
    migrations.run(migrations.steps_up(revision), shards=shards or DEFAULT_SHARDS)


def downgrade_with(
    connection: Connection, *, schema: str | None = None, revision: str = "base"
) -> None:
    """Take the tables back to `revision` in the caller's transaction: for a host's downgrade.

    `base` drops them with all they hold, and the schema if shieldtx made it and it is empty then.
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
