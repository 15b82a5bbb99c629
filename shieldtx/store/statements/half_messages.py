"""The statements on half messages, which are rows of the outbox.

A half message is a waiting row, due when its time for checks is over: no claim reads it before. Its
commit draws a new number of the sequence, like the insertion of a row. So the event has the
position of its commit in the order of its key, above every mark below which no claim reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.types import Float

from shieldtx.domain.events import shard_of, storable
from shieldtx.domain.states import OUTBOX, OutboxStatus
from shieldtx.ports.half_messages import CheckSchedule, NewHalfMessage
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import envelope_columns, values_of
from shieldtx.store.tables import Tables, needs_operator

HALF = OutboxStatus.HALF
WITH_A_PERSON = OutboxStatus.UNRESOLVED

_EVENT = bindparam("of_event", type_=Uuid())


@built_once
def insert(t: Tables, d: Dialect, plan: CheckSchedule) -> Insert:
    """Store new half messages; run with `parameters_of`."""
    return t.outbox.insert().values(
        status=HALF.value,
        attempts=0,
        waiting=True,
        holds_key=False,
        unconfirmed=False,
        # The end of its time: claims do not read the row before.
        due_at=d.later(plan.max_age),
        checks=0,
        check_at=d.later(bindparam("immunity_seconds", type_=Float)),
        created_at=d.now(),
    )


def parameters_of(
    message: NewHalfMessage, d: Dialect, plan: CheckSchedule, *, shards: int
) -> dict[str, Any]:
    """Return the parameters of an `insert`."""
    envelope, delay = message.envelope, message.delay
    immunity = plan.immunity if message.immunity is None else message.immunity
    return (
        values_of(envelope)
        | d.next_in_sequence()
        | {
            "shard": shard_of(envelope.key, envelope.id, shards),
            "immunity_seconds": min(immunity, plan.max_age).total_seconds(),
            "send_delay": delay.total_seconds() if delay else None,
            "send_at": message.at,
        }
    )


def locked(t: Tables, d: Dialect, event_ids: Sequence[UUID]) -> Select[Any]:
    """Select the statuses of messages and lock their rows, in the order of their ids.

    The lock comes first, so that no number of the sequence is drawn before a wait for another
    transaction.
    """
    o = t.outbox
    return (
        select(o.c.event_id, o.c.status)
        .where(d.is_in(o.c.event_id, event_ids, o.c.event_id.type), _was_prepared(t))
        .order_by(o.c.event_id)
        .with_for_update()
    )


def half_types(t: Tables, d: Dialect, event_ids: Sequence[UUID]) -> Select[Any]:
    """Select the event types of messages that are HALF."""
    o = t.outbox
    return select(o.c.event_id, o.c.event_type).where(
        d.is_in(o.c.event_id, event_ids, o.c.event_id.type), o.c.status == HALF.value
    )


@built_once
def commit(
    t: Tables, d: Dialect, source: OutboxStatus, *, event: ColumnElement[UUID] = _EVENT
) -> Update:
    """Queue a locked message after all events that were written before, or start its delay.

    Run with `end_parameters`, like all statements that resolve messages.
    """
    o = t.outbox
    is_delayed = or_(o.c.send_delay.is_not(None), o.c.send_at.is_not(None))
    due_at = func.coalesce(o.c.send_at, d.later(func.coalesce(o.c.send_delay, 0.0)))
    return _leave(t, source, OutboxStatus.INIT, event=event).values(
        seq=d.next_number(),
        waiting=is_delayed,
        due_at=due_at,
        # Other readers see the event from now on.
        created_at=d.now(),
        settled_at=None,
    )


@built_once
def commit_alone(t: Tables, d: Dialect) -> Update:
    """Lock a message that is HALF, and then commit it, in a transaction of this one statement."""
    o = t.outbox.alias("half")
    # Run first, and once, so that the number is drawn after the wait for a lock.
    locked = (
        select(o.c.event_id)
        .where(o.c.event_id == _EVENT, o.c.status == HALF.value)
        .with_for_update()
        .scalar_subquery()
    )
    return commit(t, d, HALF, event=locked)


@built_once
def discard(t: Tables, d: Dialect, source: OutboxStatus) -> Update:
    """Settle a message that is never sent; another message may use its business key."""
    return _leave(t, source, OutboxStatus.DISCARDED).values(settled_at=d.now(), biz_key=None)


def end_parameters(d: Dialect, event_id: UUID) -> dict[str, Any]:
    """Return the parameters of a statement that resolves one message."""
    return {_EVENT.key: event_id} | d.next_number_parameters()


def used_up(t: Tables, d: Dialect, plan: CheckSchedule, *, limit: int) -> Select[Any]:
    """Select and lock messages of all types whose checks or time are used up."""
    o = t.outbox
    is_checked, is_time_over = o.c.checks >= plan.most, o.c.due_at <= d.now()
    return (
        select(*envelope_columns(o, "created_at"), o.c.checks, o.c.last_error)
        .where(o.c.check_at.is_not(None), o.c.status == HALF.value)
        .where(or_(is_time_over, and_(is_checked, o.c.check_at <= d.now())))
        .order_by(o.c.event_type, o.c.check_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )


@built_once
def park(t: Tables, d: Dialect) -> Update:
    """Park a message as UNRESOLVED, for an operator; run with `park_parameters`."""
    reason = bindparam("why", type_=Text())
    return _leave(t, HALF, WITH_A_PERSON).values(settled_at=d.now(), last_error=reason)


def park_parameters(event_id: UUID, *, reason: str) -> dict[str, Any]:
    """Return the parameters of a `park`."""
    return {_EVENT.key: event_id, "why": storable(reason)}


def latest(
    t: Tables,
    *,
    status: OutboxStatus,
    topic: str | None,
    event_type: str | None,
    key: str | None,
    biz_key: str | None,
    limit: int,
) -> Select[Any]:
    """Select the messages that are HALF, the oldest first, or UNRESOLVED, the latest first."""
    o = t.outbox
    if status is HALF:
        # By the index of waiting rows, which has all of them, with or without planned checks.
        rows = _messages(t).where(o.c.settled_at.is_(None), o.c.waiting)
        rows = rows.where(o.c.status == status.value).order_by(o.c.created_at)
    else:
        rows = _messages(t).where(needs_operator(o), o.c.status == status.value)
        rows = rows.order_by(o.c.settled_at.desc())
    for column, wanted in (
        (o.c.topic, topic),
        (o.c.event_type, event_type),
        (o.c.key, key),
        (o.c.biz_key, biz_key),
    ):
        if wanted is not None:
            rows = rows.where(column == wanted)
    return rows.limit(limit)


def one(t: Tables, event_id: UUID) -> Select[Any]:
    """Select an event that was prepared as a half message, whatever its status."""
    o = t.outbox
    return _messages(t).where(o.c.event_id == event_id, _was_prepared(t))


def _was_prepared(t: Tables) -> ColumnElement[bool]:
    """Whether an event was a half message; a HALF row is, even without a number of checks."""
    return or_(t.outbox.c.checks.is_not(None), t.outbox.c.status == HALF.value)


def _messages(t: Tables) -> Select[Any]:
    o = t.outbox
    return select(
        *envelope_columns(o, "created_at"),
        o.c.status,
        o.c.checks,
        o.c.check_at,
        o.c.send_delay,
        o.c.send_at,
        o.c.settled_at,
        o.c.last_error,
    )


def _leave(
    t: Tables,
    source: OutboxStatus,
    target: OutboxStatus,
    *,
    event: ColumnElement[UUID] = _EVENT,
) -> Update:
    """End the checks of a message, if its status is still `source`."""
    o = t.outbox
    [seen] = OUTBOX.sources_of(target, among=(source,))
    return (
        update(o)
        .where(o.c.event_id == event, o.c.status == seen.value)
        .values(status=target.value, check_at=None, lease_token=None, last_error=None)
    )
