"""The statements of the trace: its entries, and the rows of an event in the other tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import CompoundSelect, Delete, Select, delete, func, or_, select
from sqlalchemy.sql.dml import Insert

from shieldtx.domain.states import TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

ENTRY = (
    *("event_id", "consumer_group", "attempt", "outcome", "at", "waited", "took"),
    *("record_partition", "record_offset", "reason"),
)
"""The columns of an entry."""

_OF_EVENT = (
    *("event_id", "event_type", "source", "topic", "tx_kind", "operation", "key", "biz_key"),
    *("causation_id", "causation_source", "traceparent"),
    *("status", "attempts", "due_at", "lease_until", "settled_at", "last_error"),
)
"""The columns that are read of outbox and inbox rows: never the payload, nor headers."""


@built_once
def insert_entries(t: Tables, d: Dialect) -> Insert:
    """Store entries; run with the dialect's `unnumbered_rows_parameters` of ENTRY."""
    return d.insert_new_rows(t.trace, [t.trace.c[name] for name in ENTRY], {}, lambda _: {})


def written(t: Tables, event_id: UUID) -> Select[Any]:
    """Select an event of the outbox."""
    return _outbox_rows(t).where(t.outbox.c.event_id == event_id)


def open_written(t: Tables) -> Select[Any]:
    """Select the outbox rows without an outcome, in their order: for the tests of a service."""
    return _outbox_rows(t).where(t.outbox.c.settled_at.is_(None)).order_by(t.outbox.c.seq)


def _outbox_rows(t: Tables) -> Select[Any]:
    o = t.outbox.c
    return select(*(o[name] for name in _OF_EVENT), o.created_at, o.unconfirmed)


def received(t: Tables, event_id: UUID) -> Select[Any]:
    """Select the inbox rows of an event, one per group."""
    i = t.inbox.c
    return _inbox_rows(t).where(i.event_id == event_id).order_by(i.received_at, i.consumer_group)


def open_received(t: Tables) -> Select[Any]:
    """Select the inbox rows without an outcome, in their order: for the tests of a service."""
    return _inbox_rows(t).where(t.inbox.c.settled_at.is_(None)).order_by(t.inbox.c.seq)


def _inbox_rows(t: Tables) -> Select[Any]:
    i = t.inbox.c
    own = (i.consumer_group, i.received_at, i.record_partition, i.record_offset, i.compensated_id)
    return select(*(i[name] for name in _OF_EVENT), *own)


def entries(t: Tables, event_id: UUID, *, limit: int) -> Select[Any]:
    """Select the latest entries of an event."""
    return (
        select(t.trace)
        .where(t.trace.c.event_id == event_id)
        .order_by(t.trace.c.id.desc())
        .limit(limit)
    )


def rollbacks(t: Tables, event_id: UUID) -> CompoundSelect[Any]:
    """Select the ids of the rollbacks of an event, written here or received."""
    o, i, kind = t.outbox.c, t.inbox.c, TxKind.ROLLBACK.value
    here = select(o.event_id).where(o.causation_id == event_id, o.tx_kind == kind)
    there = select(i.event_id).where(i.causation_id == event_id, i.tx_kind == kind)
    return here.union(there)


def follow_ups(t: Tables, event_id: UUID, *, after: UUID, before: UUID, limit: int) -> Select[Any]:
    """Select the ids, between two ids, of the events that handlers wrote because of an event."""
    o = t.outbox.c
    return (
        select(o.event_id)
        .where(o.event_id >= after, o.event_id < before)
        .where(o.causation_id == event_id, o.tx_kind == TxKind.COMMIT.value)
        .order_by(o.event_id)
        .limit(limit)
    )


def purge(t: Tables, d: Dialect, *, older_than: timedelta, keep: int, limit: int) -> Delete:
    """Remove the oldest entries that are too old or exceed the number that is kept."""
    c = t.trace.c
    oldest = select(c.id).order_by(c.id).limit(limit).with_for_update(skip_locked=True)
    newest = select(func.max(c.id)).scalar_subquery()
    return delete(t.trace).where(
        c.id.in_(oldest), or_(c.at < d.later(-older_than), c.id <= newest - keep)
    )
