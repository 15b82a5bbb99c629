"""Alembic's context for SQL without a connection, of one revision."""

from __future__ import annotations

from typing import TextIO

from alembic.runtime.migration import MigrationContext, RevisionStep
from sqlalchemy.dialects.postgresql.base import PGDialect

from shieldtx.store.migrations import VERSION_TABLE


def offline_context(
    step: RevisionStep, written: TextIO, *, schema: str | None, server_version: int | None = None
) -> MigrationContext:
    """Return a context that writes the SQL of a step for PostgreSQL.

    `server_version` is the major version of the server, None for all.
    """
    # Without a driver, whose placeholders would double each percent sign.
    dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]
    dialect.insert_returning = False  # so that no statement prints rows
    if server_version is not None:
        dialect.server_version_info = (server_version,)
    script = step.revision
    return MigrationContext.configure(
        dialect=dialect,
        opts={
            "as_sql": True,
            "output_buffer": written,
            "literal_binds": True,
            "version_table": VERSION_TABLE,
            "version_table_schema": schema,
            "starting_rev": script.down_revision if step.is_upgrade else script.revision,
            "fn": lambda _heads, _context: [step],
        },
    )
