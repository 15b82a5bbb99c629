"""The migration scripts of shieldtx, run over one connection."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationInfo, RevisionStep
from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.schema import CreateSchema, DropSchema

from shieldtx.errors import ConfigurationError, SchemaMismatch, TransactionRefused, UpgradeBlocked
from shieldtx.store.dialects import dialect_of
from shieldtx.store.migration_scripts import MigrationScripts
from shieldtx.store.online import OnlineChange
from shieldtx.store.schema_settings import schema_name
from shieldtx.store.tables import tables

VERSION_TABLE = "shield_version"
OWN_TABLES = frozenset({VERSION_TABLE, *(t.name for t in tables().metadata.tables.values())})

PAUSE_S = 0.1
"""The pause between two checks whether another migration has ended."""

_PATIENCE_S = 60.0
MADE_HERE = "made by shieldtx"
"""The comment of a schema that shieldtx has created."""


def _checked(connection: object) -> Connection:
    """Return a connection; raises ConfigurationError for others, as that of Alembic's `--sql`."""
    if isinstance(connection, Connection):
        return connection
    raise ConfigurationError(
        f"the migrations of shieldtx need a Connection, not {type(connection).__name__}: they read "
        "the tables, so `alembic upgrade --sql` cannot write them as a script; use that of "
        "`shieldtx db upgrade --sql`, and skip `upgrade_with` if "
        "`alembic.context.is_offline_mode()`"
    )


class Migrations:
    """The migration scripts, run over one connection, inside its transaction."""

    def __init__(self, connection: Connection, schema: str | None) -> None:
        self._connection = _checked(connection)
        self._dialect = dialect_of(connection.dialect)
        self._schema = schema_name(schema)
        if schema is not None and not self._dialect.supports_schemas:
            raise ConfigurationError(f"schema: {self._dialect.name} has none; leave it out")
        self.scripts = MigrationScripts()
        self._versions = self._context()
        self._names = f"the tables in schema {schema}" if schema else "the tables"

    def begin(self) -> None:
        """Wait for other migrations of the tables, and lock out later ones until the commit.

        Raises TransactionRefused in AUTOCOMMIT, UpgradeBlocked after a minute of waiting.
        """
        if self._dialect.is_autocommit(self._connection):
            raise TransactionRefused(
                "the connection is in AUTOCOMMIT, so a migration that fails would leave half of "
                "its changes in place; use a connection with transactions"
            )
        # A short wait: CREATE INDEX CONCURRENTLY of the other may wait for this transaction.
        deadline = time.monotonic() + _PATIENCE_S
        while not self.is_alone():
            if time.monotonic() > deadline:
                raise self.blocked(_PATIENCE_S)
            time.sleep(PAUSE_S)

    def is_alone(self) -> bool:
        """Lock out other migrations of the tables until the commit; False if another is running."""
        return self._dialect.try_migration_lock(self._connection, self._schema)

    def blocked(self, waited_s: float) -> UpgradeBlocked:
        """Return the error of a migration that has waited too long for another migration."""
        return UpgradeBlocked(
            f"another migration of {self._names} has been running for more than {waited_s:.0f} s; "
            "run this one again when it has ended"
        )

    def make_schema(self) -> None:
        """Create the schema if there is none."""
        # Checked first: IF NOT EXISTS needs the right to create schemas even if there is one.
        if self._schema and not inspect(self._connection).has_schema(self._schema):
            self._connection.execute(CreateSchema(self._schema))
            self._connection.execute(text(f"COMMENT ON SCHEMA {self._quoted()} IS '{MADE_HERE}'"))

    def current(self) -> str | None:
        """Return the revision of the tables, None if there are no tables."""
        return self._versions.get_current_revision()

    def check(self) -> None:
        """Raise SchemaMismatch for tables that are older, newer or incomplete."""
        current, head = self.current(), self.scripts.newest
        if current is None:
            raise SchemaMismatch(f"{self._names} do not exist yet: run `shieldtx db upgrade`")
        self.refuse_newer()
        if current != head:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, this shieldtx needs {head}: "
                "run `shieldtx db upgrade`"
            )
        if unfinished := self.unfinished():
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, but its upgrade was interrupted before "
                f"{', '.join(change.name for change in unfinished)} was complete: run "
                "`shieldtx db upgrade`"
            )
        missing = OWN_TABLES.difference(inspect(self._connection).get_table_names(self._schema))
        if missing:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, but {', '.join(sorted(missing))} is "
                "missing: restore it from a backup"
            )

    def refuse_newer(self) -> None:
        """Raise SchemaMismatch for a revision that these scripts do not contain."""
        current, head = self.current(), self.scripts.newest
        if current not in self.scripts:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, which this shieldtx (up to {head}) does "
                "not know: a newer one made them; install that one to work with them"
            )

    def refuse_other_shards(self, shards: int | None) -> None:
        """Raise SchemaMismatch if the tables were made for another number of shards than `shards`.

        None accepts any number.
        """
        if shards is None:
            return
        rows = select(func.count()).select_from(tables(self._schema).shard)
        made_for = self._connection.scalar(rows)
        if made_for != shards:
            raise SchemaMismatch(
                f"{self._names} were made for {made_for} shards, not for {shards}: set "
                f"SHIELDTX_SHARDS={made_for} or unset it (the number is fixed when the tables are "
                "made)"
            )

    def steps_up(self, revision: str) -> list[RevisionStep]:
        """Return the scripts from here up to `revision`, in order."""
        return self.scripts.steps_up(self.current(), revision)

    def steps_down(self, revision: str) -> list[RevisionStep]:
        """Return the scripts from here down to `revision`, in order."""
        return self.scripts.steps_down(self.current(), revision)

    def unfinished(self) -> list[OnlineChange]:
        """Return the changes that an interrupted upgrade to the current revision has left."""
        changes = self.scripts.online_changes(self.current())
        return [c for c in changes if not c.is_done(self._connection, self._schema)]

    def finish(self, changes: Iterable[OnlineChange], *, online: bool) -> None:
        """Make the changes: in autocommit with concurrent writers, or in the open transaction."""
        for change in changes:
            change.make(Operations(self._context()), self._schema, online=online)

    def refuse_losses(self, steps: Iterable[RevisionStep]) -> None:
        """Raise SchemaMismatch if a downgrade would leave rows that nothing can handle.

        A downgrade to `base` leaves no rows: it drops the tables.
        """
        if any(not step.to_revisions for step in steps):
            return
        for step in steps:
            refuse = getattr(step.revision.module, "refuse_downgrade", None)
            if refuse is not None:
                refuse(self._connection, schema=self._schema)

    def run(self, steps: list[RevisionStep], *, shards: int) -> None:
        """Run the scripts, with their online changes, in the connection's transaction."""
        for step in steps:
            self.run_script(step, shards=shards)
            self.complete(step)

    def complete(self, step: RevisionStep | MigrationInfo) -> None:
        """Make the online changes of a script that has just run, in the same transaction."""
        if step.is_upgrade:
            self.finish(self.scripts.online_changes(self.current()), online=False)

    def run_script(self, step: RevisionStep, *, shards: int = 0) -> None:
        """Run a script without its online changes, and update the version table."""
        context = self._context(fn=lambda _heads, _context: [step])
        # As an argument: `from alembic import op` is global to the process. Its use here would
        # break the host's surrounding migration, or the migration of another thread.
        context.run_migrations(op=Operations(context), schema=self._schema, shards=shards)

    def clear(self) -> None:
        """Drop the version table, and the schema if shieldtx made it and it is empty."""
        Operations(self._versions).drop_table(VERSION_TABLE, schema=self._schema, if_exists=True)
        if self._schema and self._connection.scalar(_OURS_AND_EMPTY, {"schema": self._schema}):
            self._connection.execute(DropSchema(self._schema))

    def _context(self, **options: Any) -> MigrationContext:
        versions = {"version_table": VERSION_TABLE, "version_table_schema": self._schema}
        return MigrationContext.configure(self._connection, opts=versions | options)

    def _quoted(self) -> str:
        return self._connection.dialect.identifier_preparer.quote_schema(self._schema or "")


_OURS_AND_EMPTY = text("""
    SELECT obj_description(n.oid, 'pg_namespace') = :mark AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
    )
    FROM pg_namespace n WHERE n.nspname = :schema
""").bindparams(mark=MADE_HERE)
