"""The statements on delayed events."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Float,
    FromClause,
    Select,
    Text,
    Update,
    and_,
    bindparam,
    func,
    literal,
    not_,
    select,
    update,
)

from shieldtx.domain.schedule import Due
from shieldtx.domain.states import OUTBOX, OutboxStatus, TxKind
from shieldtx.ports.delayed_events import BizKey, EventRef
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

_RELAY = bindparam("of_relay", type_=Text())
_LOOKED = bindparam("seconds_from_now", type_=Float())
_AHEAD = bindparam("seconds_ahead", type_=Float())


def standing(t: Tables, d: Dialect, event: EventRef) -> Select[Any]:
    """Select the state of a named event and lock its row: no relay claims it before the end."""
    o = t.outbox
    return (
        select(
            o.c.event_id,
            o.c.event_type,
            o.c.biz_key,
            o.c.status,
            o.c.due_at,
            was_delayed(o).label("delayed"),
            o.c.unconfirmed,
            (o.c.due_at <= d.now()).label("due"),
        )
        .where(_is_named(t, event))
        .with_for_update()
    )


def cancel(t: Tables, d: Dialect, event_id: UUID) -> Update:
    """Discard an event whose row is locked."""
    sources = OUTBOX.sources_of(OutboxStatus.DISCARDED, among=(OutboxStatus.INIT,))
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status.in_([s.value for s in sources]))
        .values(status=OutboxStatus.DISCARDED.value, settled_at=d.now())
        .returning(o.c.due_at)
    )


def reschedule(t: Tables, d: Dialect, event_id: UUID, due: Due) -> Update:
    """Change the due time of an event whose row is locked."""
    o = t.outbox
    later = d.now() if due.delay is None else d.later(due.delay)
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status == OutboxStatus.INIT.value)
        .values(due_at=later if due.at is None else due.at)
        .returning(o.c.due_at)
    )


def waiting(
    t: Tables,
    d: Dialect,
    *,
    limit: int,
    event_type: str | None,
    topic: str | None,
    key: str | None,
    biz_key: str | None = None,
) -> Select[Any]:
    """Select up to `limit` delayed events, the next due first."""
    o = t.outbox
    rows = (
        select(
            o.c.event_id,
            o.c.event_type,
            o.c.topic,
            o.c.key,
            o.c.biz_key,
            o.c.created_at,
            o.c.due_at,
            o.c.attempts,
            d.seconds_until(o.c.due_at).label("left"),
            o.c.shard,
        )
        .where(o.c.settled_at.is_(None), was_delayed(o), o.c.status == OutboxStatus.INIT.value)
        .order_by(o.c.due_at, o.c.seq)
    )
    for column, wanted in (
        (o.c.event_type, event_type),
        (o.c.topic, topic),
        (o.c.key, key),
        (o.c.biz_key, biz_key),
    ):
        if wanted is not None:
            rows = rows.where(column == wanted)
    # From the first waiting rows of each shard: all of them may be millions.
    shards = select(t.shard.c.shard).subquery("shards")
    joined, heads = d.first_of_each(shards, rows, "shard", limit)
    named = [column for column in heads.c if column.name != "shard"]
    return select(*named).select_from(joined).order_by(heads.c.due_at).limit(limit)


@built_once
def until_due(t: Tables, d: Dialect) -> Select[Any]:
    """Select in how many seconds the next waiting row of a relay's shards is due.

    NULL if no row is due within the given seconds; half messages are due later, when their time is
    over. Negative if a row became due since the last claim. Run with `until_due_parameters`.
    """
    s, o = t.shard, t.outbox
    mine = select(s.c.shard).where(s.c.owner == _RELAY, s.c.lease_until > d.now()).subquery("mine")
    rows = (
        select(o.c.due_at, o.c.shard)
        .where(o.c.settled_at.is_(None), o.c.waiting, o.c.status == OutboxStatus.INIT.value)
        .where(o.c.due_at > d.later(_LOOKED), o.c.due_at <= d.later(_AHEAD))
        .order_by(o.c.due_at)
    )
    # A literal, so that the planner knows the limit of one row even in a generic plan.
    one = literal(1, literal_execute=True)
    joined, heads = d.first_of_each(mine, rows, "shard", one)
    return select(d.seconds_until(func.min(heads.c.due_at))).select_from(joined)


def until_due_parameters(*, relay: str, since: float, within: float) -> dict[str, Any]:
    """Return the parameters of `until_due`: seconds since the last claim, and seconds ahead."""
    return {_RELAY.key: relay, _LOOKED.key: -since, _AHEAD.key: within}


def was_delayed(o: FromClause) -> ColumnElement[bool]:
    """Whether a row waits for a chosen time, or for another attempt after that time."""
    return and_(o.c.waiting, not_(o.c.holds_key))


def _is_named(t: Tables, event: EventRef) -> ColumnElement[bool]:
    c = t.outbox.c
    if not isinstance(event, BizKey):
        return c.event_id == event
    # A literal, so that the planner can use the partial index of business keys.
    commit = literal(TxKind.COMMIT.value, literal_execute=True)
    return and_(c.event_type == event.event_type, c.biz_key == event.biz_key, c.tx_kind == commit)
