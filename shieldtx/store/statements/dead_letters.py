"""The statements on dead letters and parked records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Table, literal, null, select

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.statements.row_filters import RowFilter, events, records
from shieldtx.store.tables import Tables, needs_operator, was_given_up


def outbox_letters(
    t: Tables,
    d: Dialect,
    *,
    status: OutboxStatus,
    topic: str | None,
    rows: RowFilter,
    limit: int,
    oldest: bool = False,
) -> Select[Any]:
    """Select the latest FAILED or UNRESOLVED events, or the oldest; without payloads."""
    o = t.outbox
    found = select(*_outbox_columns(t, payloads=False)).where(needs_operator(o))
    return _chosen(found, o, d, status=status, topic=topic, rows=rows, limit=limit, oldest=oldest)


def inbox_letters(
    t: Tables,
    d: Dialect,
    *,
    group: str | None,
    topic: str | None,
    rows: RowFilter,
    limit: int,
    oldest: bool = False,
) -> Select[Any]:
    """Select the latest DEAD rollbacks and events, or the oldest; without payloads."""
    i = t.inbox
    found = select(*_inbox_columns(t, payloads=False)).where(needs_operator(i))
    if group is not None:
        found = found.where(i.c.consumer_group == group)
    return _chosen(
        found, i, d, status=InboxStatus.DEAD, topic=topic, rows=rows, limit=limit, oldest=oldest
    )


def given_up_events(
    t: Tables,
    d: Dialect,
    *,
    group: str | None,
    topic: str | None,
    rows: RowFilter,
    ids: Collection[UUID] | None,
    limit: int,
) -> Select[Any]:
    """Select the latest events that groups have given up, among `ids` if given; no payloads."""
    i = t.inbox
    found = select(*_inbox_columns(t, payloads=False)).where(was_given_up(i))
    if group is not None:
        found = found.where(i.c.consumer_group == group)
    if ids is not None:
        found = found.where(d.is_in(i.c.event_id, sorted(ids), i.c.event_id.type))
    return _chosen(
        found,
        i,
        d,
        status=InboxStatus.MAX_RECONSUMED,
        topic=topic,
        rows=rows,
        limit=limit,
        oldest=False,
    )


def written(t: Tables, event_id: UUID) -> Select[Any]:
    """Select an event of the outbox, in any status."""
    return select(*_outbox_columns(t)).where(t.outbox.c.event_id == event_id)


def received(t: Tables, event_id: UUID) -> Select[Any]:
    """Select the inbox rows of an event, one per group, in any status."""
    i = t.inbox
    return select(*_inbox_columns(t)).where(i.c.event_id == event_id).order_by(i.c.consumer_group)


def outbox_status(t: Tables, event_id: UUID) -> Select[Any]:
    """Select an outbox row's status."""
    o = t.outbox
    return select(o.c.status).where(o.c.event_id == event_id)


def inbox_status(t: Tables, *, group: str, event_id: UUID, source: str) -> Select[Any]:
    """Select an inbox row's status."""
    i = t.inbox
    return select(i.c.status).where(
        i.c.event_id == event_id, i.c.consumer_group == group, i.c.source == source
    )


def parked_records(
    t: Tables,
    d: Dialect,
    *,
    group: str | None,
    topics: Sequence[str] | None,
    rows: RowFilter,
    limit: int,
    values: bool,
    oldest: bool = False,
) -> Select[Any]:
    """Select the latest parked records that wait, or the oldest; without `values`, no values."""
    p = t.parked
    value = p.c.record_value if values else null().label("record_value")
    others = [column for column in p.c if column is not p.c.record_value]
    waiting = select(*others, value).where(p.c.discarded_at.is_(None), *records(t, d, rows))
    # The records of one batch have the same time: their offsets give the order of a key.
    order = (p.c.parked_at, p.c.topic, p.c.record_partition, p.c.record_offset)
    waiting = waiting.order_by(*(order if oldest else [c.desc() for c in order])).limit(limit)
    if group is not None:
        waiting = waiting.where(p.c.consumer_group == group)
    return waiting if topics is None else waiting.where(p.c.topic.in_(topics))


def parked_from(
    t: Tables, *, group: str, topic: str, partition: int, offset: int, digest: str
) -> Select[Any]:
    """Select the records that were parked from an offset, also discarded ones, the latest first.

    A recreated topic may lead to several records; `digest` is a digest or its beginning.
    """
    p = t.parked
    return (
        select(p)
        .where(
            p.c.consumer_group == group,
            p.c.topic == topic,
            p.c.record_partition == partition,
            p.c.record_offset == offset,
            p.c.digest.startswith(digest, autoescape=True),
        )
        .order_by(p.c.parked_at.desc())
    )


def _chosen(
    found: Select[Any],
    table: Table,
    d: Dialect,
    *,
    status: OutboxStatus | InboxStatus,
    topic: str | None,
    rows: RowFilter,
    limit: int,
    oldest: bool,
) -> Select[Any]:
    c = table.c
    found = found.where(c.status == status.value, *events(table, d, rows))
    if topic is not None:
        found = found.where(c.topic == topic)
    return found.order_by(c.settled_at if oldest else c.settled_at.desc()).limit(limit)


def _outbox_columns(t: Tables, *, payloads: bool = True) -> list[ColumnElement[Any]]:
    o = t.outbox
    group = null().label("consumer_group")
    envelope = _envelope(o, "created_at", payloads=payloads)
    return [*envelope, group, *_columns(o), o.c.unconfirmed]


def _inbox_columns(t: Tables, *, payloads: bool = True) -> list[ColumnElement[Any]]:
    i = t.inbox
    unconfirmed = literal(value=False).label("unconfirmed")
    envelope = _envelope(i, "event_time", payloads=payloads)
    return [*envelope, i.c.consumer_group, *_columns(i), unconfirmed]


def _envelope(table: Table, time: str, *, payloads: bool) -> list[ColumnElement[Any]]:
    """Return the columns of an envelope; a list of many rows omits payloads of megabytes."""
    columns = envelope_columns(table, time)
    if payloads:
        return columns
    nothing = literal("").label("payload")
    return [nothing if column is table.c.payload else column for column in columns]


def _columns(table: Table) -> list[ColumnElement[Any]]:
    return [table.c.status, table.c.attempts, table.c.settled_at, table.c.last_error]
