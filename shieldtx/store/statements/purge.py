"""The statements that take old rows away, along the primary key."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Delete, Select, Table, delete, select, tuple_

from shieldtx.store.dialects import StoreDialect


def end_of_batch(table: Table, *, after: UUID, upto: UUID, limit: int) -> Select[Any]:
    """Select the id of the last of the next `limit` rows; none where there are fewer."""
    event_id = table.c.event_id
    return (
        select(event_id)
        .where(event_id > after, event_id <= upto)
        .order_by(event_id)
        .offset(limit - 1)
        .limit(1)
    )


def purge(
    table: Table,
    d: StoreDialect,
    *,
    status: Collection[str],
    older_than: timedelta,
    after: UUID,
    upto: UUID,
    limit: int,
) -> Delete:
    """Remove those of a batch that are at rest and old, but for what somebody has locked."""
    event_id, key = table.c.event_id, list(table.primary_key.columns)
    old = (
        select(*key)
        .where(
            event_id > after,
            event_id <= upto,
            table.c.status.in_(sorted(status)),
            table.c.settled_at < d.later(-older_than),
        )
        .order_by(event_id)
        # No more than are there, but the planner cannot know.
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(table).where(tuple_(*key).in_(old))
