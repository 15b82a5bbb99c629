"""Making the tables and checking that they fit: by `shieldtx db` or by a host's migrations."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.schema import CreateSchema, DropSchema, SchemaItem

from shieldtx.bundled import bundled
from shieldtx.errors import ConfigurationError, SchemaMismatch, TransactionRefused
from shieldtx.store.dialects import dialect_of
from shieldtx.store.tables import tables

VERSION_TABLE = "shield_version"
OWN_TABLES = frozenset({VERSION_TABLE, *(t.name for t in tables().metadata.tables.values())})

DEFAULT_SHARDS = 64
MOST_SHARDS = 32_768
"""What the column `shard`, a smallint, can number."""

_MADE_HERE = "made by shieldtx"
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def schema_name(value: str | None, *, setting: str = "schema") -> str | None:
    """Return the name of a schema, None for the connection's own.

    Raises ConfigurationError, naming the `setting`, for a name that would need quotes.
    """
    if value is None or (_PLAIN_NAME.fullmatch(value) and not value.startswith("pg_")):
        return value
    raise ConfigurationError(
        f"{setting}: {value!r} is no name for a schema; use lower-case letters, digits and _, "
        "63 at most, not a digit first, and not pg_ first"
    )


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
    """The tables of shieldtx in one schema of a database; every method is one transaction."""

    def __init__(
        self, engine: Engine, *, schema: str | None = None, shards: int = DEFAULT_SHARDS
    ) -> None:
        self._engine = engine
        self._schema = schema
        self._shards = shards

    def upgrade(self, revision: str = "head") -> None:
        """Bring the tables to `revision`, all or nothing, however many processes try at once.

        Raises SchemaMismatch, having changed nothing, for tables of a newer shieldtx or of another
        number of shards; ConfigurationError for a schema, shards or revision that cannot be.
        """
        with self._begin() as connection:
            upgrade_with(connection, schema=self._schema, shards=self._shards, revision=revision)

    def downgrade(self, revision: str) -> None:
        """Take the tables back to `revision`; `base` drops them. Raises as `upgrade` does."""
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

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        isolation = dialect_of(self._engine.dialect).patient_isolation
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level=isolation)
            with connection.begin():
                yield connection


def upgrade_with(
    connection: Connection,
    *,
    schema: str | None = None,
    shards: int = DEFAULT_SHARDS,
    revision: str = "head",
) -> None:
    """Bring the tables to `revision` in the caller's transaction, until whose end others wait.

    For a host's migration script: `upgrade_with(op.get_bind(), schema="...")`. Raises as
    `Schema.upgrade` does, and TransactionRefused for a connection in autocommit.
    """
    if not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"shards: {shards} is out of range; use 1 to {MOST_SHARDS}")
    migrations = Migrations(connection, schema)
    migrations.begin()
    migrations.make_schema()
    if migrations.current() is not None:
        migrations.refuse_newer()
        migrations.refuse_other_shards(shards)
    migrations.run(migrations.steps_up(revision), shards=shards)


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
        migrations.run(migrations.steps_down(revision), shards=0)
    if migrations.current() is None:
        migrations.clear()


class Migrations:
    """The migration scripts, run over one connection, inside its transaction."""

    def __init__(self, connection: Connection, schema: str | None) -> None:
        self._connection = connection
        self._dialect = dialect_of(connection.dialect)
        self._schema = schema_name(schema)
        if schema is not None and not self._dialect.supports_schemas:
            raise ConfigurationError(f"schema: {self._dialect.name} has none; leave it out")
        self._scripts = ScriptDirectory(str(bundled("migrations")))
        self._versions = self._context()
        self._names = f"the tables in schema {schema}" if schema else "the tables"

    def begin(self) -> None:
        """Hold back all others until the transaction ends; raises TransactionRefused."""
        if self._dialect.is_autocommit(self._connection):
            raise TransactionRefused(
                "the connection is in AUTOCOMMIT, so a migration that fails would leave half of "
                "its changes behind; use a connection with transactions"
            )
        self._dialect.migrate_alone(self._connection, self._schema)

    def make_schema(self) -> None:
        """Create the schema if there is none."""
        # Asked first: IF NOT EXISTS wants the right to make schemas even where there is one.
        if self._schema and not inspect(self._connection).has_schema(self._schema):
            self._connection.execute(CreateSchema(self._schema))
            self._connection.execute(text(f"COMMENT ON SCHEMA {self._quoted()} IS '{_MADE_HERE}'"))

    def current(self) -> str | None:
        """Return the revision of the tables, None where there are none."""
        return self._versions.get_current_revision()

    def check(self) -> None:
        """Refuse tables that are older, newer or incomplete."""
        current, head = self.current(), self._scripts.get_current_head()
        if current is None:
            raise SchemaMismatch(f"{self._names} do not exist yet: run `shieldtx db upgrade`")
        self.refuse_newer()
        if current != head:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, this shieldtx needs {head}: "
                "run `shieldtx db upgrade`"
            )
        missing = OWN_TABLES.difference(inspect(self._connection).get_table_names(self._schema))
        if missing:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, but {', '.join(sorted(missing))} is "
                "missing: restore it from a backup"
            )

    def refuse_newer(self) -> None:
        """Refuse a revision that these scripts do not know."""
        current, head = self.current(), self._scripts.get_current_head()
        if current not in {script.revision for script in self._scripts.walk_revisions()}:
            raise SchemaMismatch(
                f"{self._names} are at revision {current}, which this shieldtx (up to {head}) does "
                "not know: a newer one made them; install that one to work with them"
            )

    def refuse_other_shards(self, shards: int) -> None:
        """Refuse another number of shards than the tables were made for."""
        rows = select(func.count()).select_from(tables(self._schema).shard)
        made_for = self._connection.scalar(rows)
        if made_for != shards:
            raise SchemaMismatch(
                f"{self._names} were made for {made_for} shards, not for {shards}: set shards to "
                f"{made_for} again (it says where the events of a key wait, so it stays for good)"
            )

    def steps_up(self, revision: str) -> list[RevisionStep]:
        """Return the scripts from here up to `revision`, in order."""
        scripts = self._scripts
        with self._path_to(revision):
            path = list(scripts.iterate_revisions(revision, self.current(), implicit_base=True))
        return [RevisionStep(scripts.revision_map, s, is_upgrade=True) for s in reversed(path)]

    def steps_down(self, revision: str) -> list[RevisionStep]:
        """Return the scripts from here down to `revision`, in order."""
        scripts, here = self._scripts, self.current()
        with self._path_to(revision):
            path = list(scripts.iterate_revisions(here, revision, select_for_downgrade=True))
        return [RevisionStep(scripts.revision_map, s, is_upgrade=False) for s in path]

    def run(self, steps: list[RevisionStep], *, shards: int) -> None:
        """Run the scripts, each of which notes its revision in the version table."""
        context = self._context(fn=lambda _heads, _context: steps)
        # As an argument: `from alembic import op` is one for the process, so that using it here
        # would take it away from the host's migration around us, or from another thread's.
        context.run_migrations(op=Operations(context), schema=self._schema, shards=shards)

    def clear(self) -> None:
        """Drop what was made around the tables: the version table, and our schema if empty."""
        Operations(self._versions).drop_table(VERSION_TABLE, schema=self._schema, if_exists=True)
        if self._schema and self._connection.scalar(_OURS_AND_EMPTY, {"schema": self._schema}):
            self._connection.execute(DropSchema(self._schema))

    def _context(self, **options: Any) -> MigrationContext:
        versions = {"version_table": VERSION_TABLE, "version_table_schema": self._schema}
        return MigrationContext.configure(self._connection, opts=versions | options)

    def _quoted(self) -> str:
        return self._connection.dialect.identifier_preparer.quote_schema(self._schema or "")

    @contextmanager
    def _path_to(self, revision: str) -> Iterator[None]:
        try:
            yield
        except (RevisionError, CommandError) as error:
            here = self.current() or "base"
            raise ConfigurationError(
                f"no way from revision {here} to {revision}: {error}"
            ) from error


_OURS_AND_EMPTY = text("""
    SELECT obj_description(n.oid, 'pg_namespace') = :mark AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
    )
    FROM pg_namespace n WHERE n.nspname = :schema
""").bindparams(mark=_MADE_HERE)
