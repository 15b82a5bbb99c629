"""The statements of a repair: each changes only rows that still have the state it expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    Update,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.statements.outbox import requeued
from shieldtx.store.tables import Tables

InboxKey = tuple[UUID, str, str]
"""Event, group and source."""


def outbox_rows(t: Tables, d: Dialect, ids: Sequence[UUID], *, lock: bool) -> Select[Any]:
    """Select the present state of outbox rows; with `lock`, lock them and skip locked rows."""
    o = t.outbox
    columns = (o.c.event_id, *_standing(o, d))
    rows = select(*columns).where(d.is_in(o.c.event_id, ids, o.c.event_id.type))
    rows = rows.order_by(o.c.event_id)
    return rows.with_for_update(skip_locked=True) if lock else rows


def events_to_hand_over(
    t: Tables, d: Dialect, ids: Sequence[UUID], *, payloads: bool
) -> Select[Any]:
    """Select the present state of outbox events, with envelopes, and payloads if `payloads`.

    The rows are not locked. With locks, a second concurrent repair would skip the events that the
    first is handing over, and store later events of their keys first.
    """
    o = t.outbox
    envelope = _envelope(o, d, "created_at")
    columns = envelope if payloads else _without_payload(o, envelope)
    return select(*columns, *_standing(o, d)).where(d.is_in(o.c.event_id, ids, o.c.event_id.type))


def inbox_rows(t: Tables, d: Dialect, keys: Sequence[InboxKey], *, lock: bool) -> Select[Any]:
    """Select the state of inbox rows, and their envelopes without the payloads."""
    i = t.inbox
    # A payload may be a megabyte, and nothing here needs it.
    envelope = _without_payload(i, _envelope(i, d, "event_time"))
    columns = (*envelope, i.c.consumer_group, *_standing(i, d), i.c.last_error)
    rows = select(*columns).where(_is_one_of(i, keys))
    rows = rows.order_by(i.c.event_id, i.c.consumer_group)
    return rows.with_for_update(skip_locked=True) if lock else rows


def received(t: Tables, d: Dialect, ids: Sequence[UUID], groups: Sequence[str]) -> Select[Any]:
    """Select which rows of these events and groups are in the inbox, of any source."""
    i = t.inbox
    # An array of ids: a list of thousands of keys takes longer to write than to look up.
    return select(*_key(i)).where(
        i.c.consumer_group.in_(groups), d.is_in(i.c.event_id, ids, i.c.event_id.type)
    )


def taken_back(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Select[Any]:
    """Select which events, by id and source, have a rollback in the outbox."""
    o = t.outbox
    # A literal, so that the planner can use the partial index of rollbacks.
    rollback = literal(TxKind.ROLLBACK.value, literal_execute=True)
    return select(o.c.causation_id, o.c.causation_source).where(
        o.c.tx_kind == rollback, d.is_in(o.c.causation_id, ids, o.c.event_id.type)
    )


def not_discarded_rollbacks(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Select[Any]:
    """Select which events, by id and source, a rollback that is not discarded takes back."""
    return taken_back(t, d, ids).where(t.outbox.c.status != OutboxStatus.DISCARDED.value)


def received_rollbacks(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Select[Any]:
    """Select the events, by id and source, of which a group has a rollback, settled or open.

    Discarded rollbacks do not count.
    """
    i = t.inbox
    rollback = literal(TxKind.ROLLBACK.value, literal_execute=True)
    return select(i.c.causation_id, i.c.causation_source).where(
        i.c.tx_kind == rollback,
        d.is_in(i.c.causation_id, ids, i.c.event_id.type),
        i.c.status != InboxStatus.DISCARDED.value,
    )


def count_shards(t: Tables) -> Select[Any]:
    """Count the shards of this database."""
    return select(func.count()).select_from(t.shard)


def publish_again(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Update:
    """Queue PROCESSED events again that the broker acknowledged and the topic does not contain.

    Other groups may still have received them, so an operator decides about a local rollback.
    """
    return _requeue(t, d, ids, OutboxStatus.PROCESSED).values(requeued(d) | {"unconfirmed": True})


def release_events(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Update:
    """Release the events of a relay whose lease ran out; as in a claim, it may have sent them.

    The events keep their positions, and the rows that they block keep waiting.
    """
    return (
        _requeue(t, d, ids, OutboxStatus.PROCESSING)
        .where(_lease_ran_out(t.outbox, d))
        .values(
            status=OutboxStatus.INIT.value, unconfirmed=True, lease_token=None, lease_until=None
        )
    )


def release_attempts(t: Tables, d: Dialect, keys: Sequence[InboxKey]) -> Update:
    """Make events due at once whose worker has abandoned their attempt."""
    i = t.inbox
    sources = INBOX.sources_of(InboxStatus.PROCESSING, among=(InboxStatus.PROCESSING,))
    return (
        update(i)
        .where(_is_one_of(i, keys), i.c.status.in_([s.value for s in sources]))
        .where(_lease_ran_out(i, d))
        .values(due_at=d.now(), lease_token=None, lease_until=None)
    )


def _requeue(t: Tables, d: Dialect, ids: Sequence[UUID], source: OutboxStatus) -> Update:
    o = t.outbox
    sources = OUTBOX.sources_of(OutboxStatus.INIT, among=(source,))
    return update(o).where(
        d.is_in(o.c.event_id, ids, o.c.event_id.type), o.c.status.in_([s.value for s in sources])
    )


def _envelope(table: Table, d: Dialect, time: str) -> list[ColumnElement[Any]]:
    """Return the columns of an envelope; an operator may have set a time outside the calendar."""
    within = d.inside_calendar(table.c[time]).label(time)
    return [within if column.key == time else column for column in envelope_columns(table, time)]


def _without_payload(table: Table, envelope: list[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    return [
        literal("null").label("payload") if column is table.c.payload else column
        for column in envelope
    ]


def _standing(table: Table, d: Dialect) -> tuple[ColumnElement[Any], ...]:
    c = table.c
    return (
        c.status,
        d.inside_calendar(c.settled_at).label("settled_at"),
        c.attempts,
        c.lease_token.is_not(None).label("leased"),
        _lease_ran_out(table, d).label("lease_ran_out"),
    )


def _lease_ran_out(table: Table, d: Dialect) -> ColumnElement[bool]:
    return or_(table.c.lease_until.is_(None), table.c.lease_until <= d.now())


def _is_one_of(inbox: Table, keys: Sequence[InboxKey]) -> ColumnElement[bool]:
    return tuple_(*_key(inbox)).in_(list(keys))


def _key(inbox: Table) -> tuple[ColumnElement[Any], ...]:
    return inbox.c.event_id, inbox.c.consumer_group, inbox.c.source
