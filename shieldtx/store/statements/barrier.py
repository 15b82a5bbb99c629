"""The statements on the barrier, in whose primary key a local transaction and its check meet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Delete, Insert, Select, delete, select
from sqlalchemy.sql.dml import ReturningInsert

from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables


def enter(t: Tables, d: Dialect) -> Insert:
    """Say, in a local transaction, that it commits; a check that came first refuses it."""
    return t.barrier.insert().values(committed=True, entered_at=d.now())


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
