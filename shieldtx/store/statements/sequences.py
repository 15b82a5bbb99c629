"""The queries on the sequences of PostgreSQL's tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    TextClause,
    and_,
    func,
    select,
    text,
    union_all,
)

from shieldtx.store.statements.locks import qualified
from shieldtx.store.tables import in_main_queue

_LATEST = 1000
"""The number of latest rows that are read, settled rows included."""


def highest(table: Table) -> Select[Any]:
    """Select the highest number among the open rows and the latest rows, which indexes find."""
    seq = table.c.seq.label("seq")
    latest = select(seq).order_by(table.c.event_id.desc()).limit(_LATEST).subquery()
    parts = [select(func.max(seq).label("seq")).where(part) for part in open_parts(table)]
    rows = union_all(*parts, select(latest.c.seq)).subquery()
    return select(func.max(rows.c.seq))


def open_parts(table: Table) -> list[ColumnElement[bool]]:
    """Return the conditions of the partial indexes that together contain all open rows."""
    c = table.c
    open_ = c.settled_at.is_(None)
    if "holds_key" not in c:
        return [open_]
    return [in_main_queue(table), and_(open_, c.waiting), and_(open_, c.holds_key)]


def sequence_of(table: Table) -> TextClause:
    """Select the quoted name of a table's sequence; NULL if the role may not read it."""
    return text("""
        SELECT CASE WHEN has_sequence_privilege(name, 'SELECT') THEN name END
        FROM pg_get_serial_sequence(:table, 'seq') AS name
    """).bindparams(table=qualified(table.name, table.schema))


def next_value(sequence: str) -> TextClause:
    """Select the next number of a sequence, without drawing it."""
    return text(f"SELECT last_value + is_called::int FROM {sequence}")  # noqa: S608  quoted by the server
