"""The statements on the checks of half messages; all are run with parameters.

A message carries the token of its check until the result is written. So a result that comes after a
commit, a rollback or the next check finds no row. If a message is due while it still carries a
token, the process that checked it has not written a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.events import storable
from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.tables import Tables

_TYPE = bindparam("of_type", type_=Text())
_LIMIT = bindparam("at_most", type_=Integer())
_TOKEN = bindparam("with_token", type_=Uuid())
_EVENT = bindparam("of_event", type_=Uuid())
_REASON = bindparam("why", type_=Text())
_EVENTS = "of_events"
_TYPES = "of_types"


@built_once
def types_due(t: Tables, d: Dialect, plan: CheckSchedule) -> Select[Any]:
    """Select the given event types that have a message due for a check."""
    o = t.outbox
    asked = d.text_rows(_TYPES)
    rows = select(o.c.event_type.label("value")).where(_is_due(t, d, plan))
    joined, _ = d.first_of_each(asked, rows, "value", 1)
    return select(asked.c.value).select_from(joined).distinct()


def types_due_parameters(event_types: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a `types_due`."""
    return {_TYPES: list(event_types)}


@built_once
def due(t: Tables, d: Dialect, plan: CheckSchedule) -> Select[Any]:
    """Select and lock messages due for a check, and whether their last check has no result."""
    o = t.outbox
    return (
        select(o.c.event_id, o.c.lease_token.is_not(None))
        .where(o.c.event_type == _TYPE, _is_due(t, d, plan))
        # Of messages due together the first prepared, so that each poll finds the same messages.
        .order_by(o.c.check_at, o.c.event_id)
        .limit(_LIMIT)
        .with_for_update(skip_locked=True)
    )


def due_parameters(event_type: str, limit: int) -> dict[str, Any]:
    """Return the parameters of a `due`."""
    return {_TYPE.key: event_type, _LIMIT.key: limit}


@built_once
def begin(t: Tables, d: Dialect, plan: CheckSchedule) -> ReturningUpdate[Any]:
    """Count the next check of each message, schedule the check after it, return the messages."""
    o = t.outbox
    pauses = dict(enumerate(plan.pauses()))
    seconds = {count: pause.total_seconds() for count, pause in pauses.items()}
    pause = case(seconds, value=o.c.checks, else_=seconds[plan.most - 1])
    return (
        update(o)
        .where(d.is_in_parameter(o.c.event_id, _EVENTS), _is_due(t, d, plan))
        .values(checks=o.c.checks + 1, check_at=d.later(pause), lease_token=_TOKEN)
        .returning(*envelope_columns(o, "created_at"), o.c.checks)
    )


@built_once
def lock_checks(t: Tables, d: Dialect) -> Select[Any]:
    """Select messages that still carry the token; lock them in the order that all processes use."""
    o = t.outbox
    return (
        select(o.c.event_id)
        .where(d.is_in_parameter(o.c.event_id, _EVENTS), _is_leased(t))
        .order_by(o.c.event_id)
        .with_for_update()
    )


@built_once
def release(t: Tables, d: Dialect) -> Update:
    """Make checks that were not made due at once, and do not count them."""
    o = t.outbox
    return (
        update(o)
        .where(d.is_in_parameter(o.c.event_id, _EVENTS), _is_leased(t))
        .values(checks=o.c.checks - 1, check_at=d.now(), lease_token=None)
    )


def parameters(token: UUID, event_ids: Sequence[UUID]) -> dict[str, Any]:
    """Return the parameters of `begin`, `lock_checks` and `release`."""
    return {_TOKEN.key: token, _EVENTS: list(event_ids)}


@built_once
def note(t: Tables) -> Update:
    """Record the reason of an inconclusive check; run with `note_parameters`."""
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id == _EVENT, _is_leased(t))
        .values(last_error=_REASON, lease_token=None)
    )


def note_parameters(token: UUID, event_id: UUID, *, reason: str) -> dict[str, Any]:
    """Return the parameters of a `note`."""
    return {_TOKEN.key: token, _EVENT.key: event_id, _REASON.key: storable(reason)}


def _is_due(t: Tables, d: Dialect, plan: CheckSchedule) -> ColumnElement[bool]:
    o = t.outbox
    return and_(
        o.c.check_at <= d.now(),
        o.c.status == OutboxStatus.HALF.value,
        o.c.checks < plan.most,
        o.c.due_at > d.now(),
    )


def _is_leased(t: Tables) -> ColumnElement[bool]:
    return and_(t.outbox.c.status == OutboxStatus.HALF.value, t.outbox.c.lease_token == _TOKEN)
