"""What a downgrade drops: for the question before it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from alembic.operations import Operations
from alembic.runtime.migration import RevisionStep
from sqlalchemy import Connection, func, literal, select, table

from shieldtx.store.migrations import Migrations
from shieldtx.store.offline_context import offline_context

COUNTED: Final = 10_000
"""The most rows of a table that are counted: counting a large table would take minutes."""

_RECREATED: Final = frozenset({"shield_shard", "shield_relay", "shield_version"})
"""Tables whose rows the next upgrade, or the start of a relay, writes again."""

_DROPPED_TABLE: Final = re.compile(r"DROP TABLE (?:\S+\.)?(\w+)")
_DROPPED_COLUMN: Final = re.compile(r"ALTER TABLE (?:\S+\.)?(\w+) DROP COLUMN (\w+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class DowngradePlan:
    """The steps of a downgrade, and what they drop."""

    before: str | None
    """The present revision, None without tables."""
    steps: Mapping[str, str]
    """The revisions that are taken back, in order, each with what it has added."""
    tables: Mapping[str, int]
    """The dropped tables, with the number of rows that are lost, up to `COUNTED` + 1."""
    columns: tuple[str, ...]
    """The dropped columns of tables that remain, as `table.column`."""

    @property
    def lost(self) -> Mapping[str, int]:
        """The dropped tables that contain rows."""
        return {name: rows for name, rows in self.tables.items() if rows}


def plan_downgrade(connection: Connection, schema: str | None, revision: str) -> DowngradePlan:
    """Return the plan of a downgrade to `revision`; nothing changes.

    Raises SchemaMismatch for rows that the older release could not handle, and ConfigurationError
    for an unknown or higher revision.
    """
    migrations = Migrations(connection, schema)
    before = migrations.current()
    steps: list[RevisionStep] = []
    if before is not None:
        migrations.refuse_newer()
        steps = migrations.steps_down(revision)
        migrations.refuse_losses(steps)
    statements = _statements(steps, schema)
    dropped = dict.fromkeys(_DROPPED_TABLE.findall(statements))
    return DowngradePlan(
        before=before,
        steps={step.revision.revision: step.revision.doc for step in steps},
        tables={name: _rows(connection, name, schema) for name in dropped},
        columns=tuple(
            f"{name}.{column}"
            for name, column in _DROPPED_COLUMN.findall(statements)
            if name not in dropped
        ),
    )


def _statements(steps: Iterable[RevisionStep], schema: str | None) -> str:
    """Return the SQL of the steps: the scripts alone decide what is dropped, in any database."""
    written = io.StringIO()
    for step in steps:
        context = offline_context(step, written, schema=schema)
        context.run_migrations(op=Operations(context), schema=schema, shards=0)
    return written.getvalue()


def _rows(connection: Connection, name: str, schema: str | None) -> int:
    if name in _RECREATED:
        return 0
    rows = select(literal(1)).select_from(table(name, schema=schema)).limit(COUNTED + 1)
    return connection.scalar(select(func.count()).select_from(rows.subquery())) or 0
