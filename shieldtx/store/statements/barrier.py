"""The statements on the barrier: a local transaction and its check write the same primary key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    Delete,
    Insert,
    Select,
    String,
    bindparam,
    delete,
    select,
    text,
    true,
)
from sqlalchemy.sql.dml import ReturningInsert

from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables

_MARKS: Final = "shieldtx.entered"
"""A PostgreSQL setting that is local to a transaction; a rollback resets it."""
_MARKED: Final = text(
    f"set_config('{_MARKS}', coalesce(current_setting('{_MARKS}', true), '') || :mark, true) "
    "IS NOT NULL"
).bindparams(bindparam("mark", type_=String()))

MARKS: Final = text(f"SELECT current_setting('{_MARKS}', true)")
"""Reads the marks of the transaction, independent of privileges and of the schema."""


def enter(t: Tables, d: Dialect) -> Insert:
    """Record, in a local transaction, that it commits; an earlier check makes this fail.

    Execute with an `event_id` and a `mark` for each row. On PostgreSQL the INSERT itself adds the
    mark to the marks of the transaction. A rollback to a savepoint and the end of the transaction
    therefore remove the mark too.
    """
    committed = _MARKED if has_marks(d) else true()
    return t.barrier.insert().values(committed=committed, entered_at=d.now())


def has_marks(d: Dialect) -> bool:
    """Whether a database keeps the marks of a transaction."""
    return d.name == "postgresql"


def entered(t: Tables, event_ids: Sequence[UUID]) -> Select[Any]:
    """Select the events whose local transaction has entered the barrier."""
    b = t.barrier.c
    return select(b.event_id).where(b.event_id.in_(event_ids), b.committed)


def close(t: Tables, d: Dialect, event_id: UUID) -> ReturningInsert[Any]:
    """Reject a local transaction that has not entered yet; wait for one that is in flight.

    The statement returns no row if the transaction, or another check, has written the barrier.
    """
    row = {"event_id": event_id, "committed": False, "entered_at": d.now()}
    return d.insert_new(t.barrier).values(row).returning(t.barrier.c.event_id)


def found(t: Tables, event_id: UUID) -> Select[Any]:
    """Select whether the local transaction entered the barrier."""
    return select(t.barrier.c.committed).where(t.barrier.c.event_id == event_id)


def purge(t: Tables, d: Dialect, *, older_than: timedelta, upto: UUID, limit: int) -> Delete:
    """Remove old rows, except locked rows."""
    b = t.barrier
    old = (
        select(b.c.event_id)
        .where(b.c.event_id <= upto, b.c.entered_at < d.later(-older_than))
        .order_by(b.c.event_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(b).where(b.c.event_id.in_(old))
