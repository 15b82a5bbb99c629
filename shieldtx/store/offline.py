"""The SQL of an upgrade, for an administrator who runs it without shieldtx."""

from __future__ import annotations

import io
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep

from shieldtx.errors import ConfigurationError
from shieldtx.store.migration_scripts import BASE, MigrationScripts
from shieldtx.store.migrations import MADE_HERE, VERSION_TABLE
from shieldtx.store.offline_context import offline_context
from shieldtx.store.schema_settings import schema_name
from shieldtx.store.statements import locks, offline
from shieldtx.store.upgrades import LARGE_TABLES

OLDEST_SERVER: Final = 14
LOCK_WAIT: Final = timedelta(seconds=3)
"""How long a writer can wait for a statement that waits for a lock: the SQL cannot try again."""


class OfflineUpgrade:
    """The SQL of an upgrade of the tables in PostgreSQL, which makes the same tables."""

    def __init__(
        self,
        *,
        schema: str | None,
        shards: int | None,
        new_shards: int,
        server_version: int | None = None,
    ) -> None:
        """Print for `new_shards` in new tables, and for existing tables with `shards`, if any.

        Raises ConfigurationError for an invalid schema or server version.
        """
        if server_version is not None and server_version < OLDEST_SERVER:
            raise ConfigurationError(
                f"--server-version: {server_version} is not a supported major version of "
                f"PostgreSQL; use {OLDEST_SERVER} or later"
            )
        self._schema = schema_name(schema)
        self._shards = shards
        self._new_shards = new_shards
        self._server_version = server_version
        self._scripts = MigrationScripts()
        self._written = io.StringIO()

    def sql(self, start: str, target: str) -> str:
        """Return the SQL from revision `start` (`base`: there are no tables) to `target`.

        Raises ConfigurationError for unknown revisions, for a target that is not above the start,
        and where the SQL depends on a server version that is not given.
        """
        first = None if start == BASE else self._known(start)
        steps = self._scripts.steps_up(first, target)
        if not steps:
            raise ConfigurationError(
                f"revision {target} is not above {first or BASE}: there is nothing to do"
            )
        self._written = io.StringIO()
        self._introduce(first or BASE, steps[-1].revision.revision)
        if first is None:
            self._install(steps)
        else:
            self._upgrade(first, steps)
        return self._written.getvalue()

    def _known(self, revision: str) -> str:
        """Return the full name of a revision; Alembic accepts the start of its name."""
        if not revision.isalnum():  # such as `+1`, which is relative to nothing here
            raise ConfigurationError(
                f"there is no revision {revision!r} to start from: name it, or {BASE}"
            )
        return str(self._scripts.steps_up(None, revision)[-1].revision.revision)

    def _introduce(self, start: str, target: str) -> None:
        where = f"schema {self._schema}" if self._schema else "the current schema"
        shards = f", with {self._new_shards} shards" if start == BASE else ""
        for line in (
            f"shieldtx {version('shieldtx')}: tables in {where}, from {start} to {target}{shards}.",
            "Run it as the owner of the tables, and stop at the first error:",
            "    psql --set ON_ERROR_STOP=1 --file FILE DATABASE",
            "A new schema needs CREATE on the database, new tables need CREATE on the schema.",
            "The role becomes the owner of new tables: grant the roles of the service afterwards.",
            "A transaction that fails changes nothing.",
        ):
            self._written.write(f"-- {line}\n")
        self._written.write("\n")

    def _install(self, steps: list[RevisionStep]) -> None:
        """Write one transaction: no other process uses the tables before its end."""
        self._begin()
        self._write(
            offline.first_install(VERSION_TABLE, self._schema, target=steps[-1].revision.revision)
        )
        self._require_server()
        if self._schema:
            self._write(offline.make_schema(self._schema, MADE_HERE))
        for step in steps:
            self._run(step, shards=self._new_shards)
            self._make_online_changes(step, online=False)
        self._write("COMMIT")

    def _upgrade(self, current: str, steps: list[RevisionStep]) -> None:
        """Write a transaction for each revision, and its online changes after it."""
        for number, step in enumerate(steps):
            self._begin()
            self._write(
                offline.begin_revision(
                    VERSION_TABLE,
                    self._schema,
                    current=current,
                    lock_wait=LOCK_WAIT,
                    shards=self._shards,
                )
            )
            if number == 0:
                self._require_server()
            self._write(str(locks.lock_for_changes(LARGE_TABLES, self._schema)))
            self._run(step, shards=0)
            self._write("COMMIT")
            self._make_online_changes(step, online=True)
            current = step.revision.revision

    def _run(self, step: RevisionStep, *, shards: int) -> None:
        context = self._context(step)
        context.run_migrations(op=Operations(context), schema=self._schema, shards=shards)

    def _make_online_changes(self, step: RevisionStep, *, online: bool) -> None:
        changes = self._scripts.online_changes(step.revision.revision)
        if changes and online:
            self._written.write("-- Outside of a transaction: writers of the tables continue.\n")
            self._written.write("-- If one of these fails, run it and the rest again.\n")
            self._write(offline.session_without_timeouts())
        for change in changes:
            change.make(Operations(self._context(step)), self._schema, online=online)

    def _context(self, step: RevisionStep) -> MigrationContext:
        return offline_context(
            step, self._written, schema=self._schema, server_version=self._server_version
        )

    def _begin(self) -> None:
        self._write("BEGIN ISOLATION LEVEL READ COMMITTED")

    def _require_server(self) -> None:
        if self._server_version is not None:
            self._write(offline.require_server(self._server_version))

    def _write(self, statement: str) -> None:
        self._written.write(f"{statement};\n\n")
