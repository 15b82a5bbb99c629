"""The statements that take old rows away."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from sqlalchemy import Delete, Table, delete, select, tuple_

from shieldtx.states import INBOX, OUTBOX
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.tables import Tables


def purge_outbox(
    t: Tables, d: StoreDialect, *, older_than: timedelta, below: UUID, limit: int
) -> Delete:
    """Remove outbox rows at rest; `below` bounds the scan of the primary key."""
    return _purge(t.outbox, d, OUTBOX.purgeable, older_than, below, limit)


def purge_inbox(
    t: Tables, d: StoreDialect, *, older_than: timedelta, below: UUID, limit: int
) -> Delete:
    """Remove inbox rows at rest; `below` bounds the scan of the primary key."""
    return _purge(t.inbox, d, INBOX.purgeable, older_than, below, limit)


def _purge(  # noqa: PLR0917  called twice, just above
    table: Table,
    d: StoreDialect,
    purgeable: Collection[StrEnum],
    older_than: timedelta,
    below: UUID,
    limit: int,
) -> Delete:
    key = list(table.primary_key.columns)
    old = (
        select(*key)
        .where(
            table.c.event_id < below,
            table.c.status.in_([s.value for s in purgeable]),
            table.c.settled_at < d.later(-older_than),
        )
        .order_by(table.c.event_id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return delete(table).where(tuple_(*key).in_(old))
