"""The statements on the barrier, in whose primary key a local transaction and its check meet."""

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
"""A setting of PostgreSQL's, which a transaction sets for itself and a rollback sets back."""
_MARKED: Final = text(
    f"set_config('{_MARKS}', coalesce(current_setting('{_MARKS}', true), '') || :mark, true) "
    "IS NOT NULL"
).bindparams(bindparam("mark", type_=String()))

MARKS: Final = text(f"SELECT current_setting('{_MARKS}', true)")
"""The marks of the transaction, whatever its role may read and wherever its tables are."""


def enter(t: Tables, d: Dialect) -> Insert:
    """Say, in a local transaction, that it commits; a check that came first refuses it.

    To be executed with an `event_id` and a `mark` for each row. On PostgreSQL the mark is added to
    those of the transaction, by the INSERT itself: whatever undoes the row, and the end of its
    transaction, takes the mark along.
    """
    committed = _MARKED if has_marks(d) else true()
    return t.barrier.insert().values(committed=committed, entered_at=d.now())


def has_marks(d: Dialect) -> bool:
    """Whether a database keeps marks."""
    return d.name == "postgresql"


def entered(t: Tables, event_ids: Sequence[UUID]) -> Select[Any]:
    """Select those whose rows are there."""
    b = t.barrier.c
    return select(b.event_id).where(b.event_id.in_(event_ids), b.committed)


def close(t: Tables, d: Dialect, event_id: UUID) -> ReturningInsert[Any]:
    """Shut a local transaction out that has not come by now; wait for one that is in flight.

    It returns nothing when the transaction, or another check, has been there.
    """
    row = {"event_id": event_id, "committed": False, "entered_at": d.now()}
    return d.insert_new(t.barrier).values(row).returning(t.barrier.c.event_id)


def found(t: Tables, event_id: UUID) -> Select[Any]:
    """Select whether the local transaction was there."""
    return select(t.barrier.c.committed).where(t.barrier.c.event_id == event_id)


def purge(t: Tables, d: Dialect, *, older_than: timedelta, upto: UUID, limit: int) -> Delete:
    """Remove old rows, but for locked ones."""
    b = t.barrier
    old = (
        select(b.c.event_id)
        .where(b.c.event_id <= upto, b.c.entered_at < d.later(-older_than))
        .order_by(b.c.event_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(b).where(b.c.event_id.in_(old))
