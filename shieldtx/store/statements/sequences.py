"""What is asked about the sequences of PostgreSQL's tables."""

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
from shieldtx.store.tables import in_line

_LATEST = 1000
"""How many of the latest rows are looked at, settled ones among them."""


def highest(table: Table) -> Select[Any]:
    """Return the highest number among the open rows and the latest rows: all that indexes find."""
    seq = table.c.seq.label("seq")
    latest = select(seq).order_by(table.c.event_id.desc()).limit(_LATEST).subquery()
    parts = [select(func.max(seq).label("seq")).where(part) for part in open_parts(table)]
    rows = union_all(*parts, select(latest.c.seq)).subquery()
    return select(func.max(rows.c.seq))


def open_parts(table: Table) -> list[ColumnElement[bool]]:
    """Return conditions that all open rows are in, in the words of one partial index each."""
    c = table.c
    open_ = c.settled_at.is_(None)
    if "holds_key" not in c:
        return [open_]
    return [in_line(table), and_(open_, c.waiting), and_(open_, c.holds_key)]


def sequence_of(table: Table) -> TextClause:
    """Return the quoted name of a table's sequence; NULL where the role may not read it."""
    return text("""
        SELECT CASE WHEN has_sequence_privilege(name, 'SELECT') THEN name END
        FROM pg_get_serial_sequence(:table, 'seq') AS name
    """).bindparams(table=qualified(table.name, table.schema))


def next_value(sequence: str) -> TextClause:
    """Return the number that a sequence gives next, without drawing it."""
    return text(f"SELECT last_value + is_called::int FROM {sequence}")  # noqa: S608  quoted by the server
