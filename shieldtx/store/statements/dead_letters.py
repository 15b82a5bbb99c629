"""The statements on dead letters and parked records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Table, literal, null, select

from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.tables import Tables, needs_operator


def failed_events(t: Tables, *, topic: str | None, limit: int) -> Select[Any]:
    """Select the latest FAILED events."""
    return _latest(t.outbox, _outbox_columns(t), OutboxStatus.FAILED, topic, limit)


def dead_rollbacks(t: Tables, *, group: str | None, topic: str | None, limit: int) -> Select[Any]:
    """Select the latest DEAD rollbacks."""
    statement = _latest(t.inbox, _inbox_columns(t), InboxStatus.DEAD, topic, limit)
    return statement if group is None else statement.where(t.inbox.c.consumer_group == group)


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
    t: Tables, *, group: str | None, topics: Sequence[str] | None, limit: int, values: bool
) -> Select[Any]:
    """Select the latest parked records that wait; without `values`, their values are NULL."""
    p = t.parked
    value = p.c.record_value if values else null().label("record_value")
    others = [column for column in p.c if column is not p.c.record_value]
    waiting = select(*others, value).where(p.c.discarded_at.is_(None))
    statement = waiting.order_by(p.c.parked_at.desc()).limit(limit)
    if group is not None:
        statement = statement.where(p.c.consumer_group == group)
    return statement if topics is None else statement.where(p.c.topic.in_(topics))


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


def _latest(
    table: Table,
    columns: list[ColumnElement[Any]],
    status: OutboxStatus | InboxStatus,
    topic: str | None,
    limit: int,
) -> Select[Any]:
    statement = (
        select(*columns)
        .where(needs_operator(table), table.c.status == status.value)
        .order_by(table.c.settled_at.desc())
        .limit(limit)
    )
    return statement if topic is None else statement.where(table.c.topic == topic)


def _outbox_columns(t: Tables) -> list[ColumnElement[Any]]:
    o = t.outbox
    group = null().label("consumer_group")
    return [*envelope_columns(o, "created_at"), group, *_columns(o), o.c.unconfirmed]


def _inbox_columns(t: Tables) -> list[ColumnElement[Any]]:
    i = t.inbox
    unconfirmed = literal(value=False).label("unconfirmed")
    return [*envelope_columns(i, "event_time"), i.c.consumer_group, *_columns(i), unconfirmed]


def _columns(table: Table) -> list[ColumnElement[Any]]:
    return [table.c.status, table.c.attempts, table.c.settled_at, table.c.last_error]
