"""The statements that change an inbox row: its attempts, and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Float,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    not_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.events import storable
from shieldtx.domain.states import INBOX, InboxStatus
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import LOCKED_AT, TRANSACTION, Dialect
from shieldtx.store.statements import inbox_order
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

GROUP = _GROUP = bindparam("of_group", type_=Text())
_EVENT_ID = bindparam("of_event", type_=Uuid())
_SOURCE = bindparam("of_source", type_=Text())
_TOKEN = bindparam("with_token", type_=Uuid())
_LEASE_SECONDS = bindparam("lease_seconds", type_=Float())
_EVENT_IDS = "of_events"
_REASONS = "reasons"
"""The reason of each event, by its id in hexadecimal digits."""
COMPENSATED = "compensated"
IS_PROBE = "is_probe"


@built_once
def start_attempt(t: Tables, d: Dialect) -> ReturningUpdate[Any]:
    """Count an attempt, if the row is due, first of its key and not locked.

    An attempt that died in a batch was counted, but may not have run at all: it keeps its number.
    So does one that died as a probe, which is marked alike. A probe makes its row the one that has
    been due for the shortest time. Run with `attempt_parameters` and IS_PROBE.
    """
    is_probe = bindparam(IS_PROBE, type_=Boolean())
    w = t.inbox.alias("waiting")
    free = (
        select(w.c.event_id)
        .where(w.c.event_id == _EVENT_ID, w.c.consumer_group == _GROUP, w.c.source == _SOURCE)
        .where(w.c.settled_at.is_(None))
        .where(inbox_order.is_free(w, d), not_(inbox_order.is_blocked(t, w)))
        .with_for_update(skip_locked=True)
    )
    i = t.inbox
    return (
        update(i)
        .where(is_row(t, _GROUP, _EVENT_ID, _SOURCE), _may_start(t))
        .where(i.c.event_id.in_(free))
        .values(
            status=InboxStatus.PROCESSING.value,
            attempts=case((i.c.together, i.c.attempts), else_=i.c.attempts + 1),
            together=is_probe,
            due_at=case((is_probe, d.now()), else_=i.c.due_at),
            lease_token=_TOKEN,
            lease_until=d.later(_LEASE_SECONDS),
        )
        .returning(i.c.attempts, i.c.record_partition, i.c.record_offset)
    )


@built_once
def lock_row(t: Tables, d: Dialect) -> Select[Any] | ReturningUpdate[Any]:
    """Lock a row before its handler runs; run with `attempt_parameters`."""
    row = t.inbox.c.event_id == _EVENT_ID
    return d.lock_rows(t.inbox, _may_be_settled(t, row, _GROUP, _TOKEN, InboxStatus.PROCESSED))


@built_once
def lock_batch(t: Tables, d: Dialect) -> Select[Any] | ReturningUpdate[Any]:
    """Lock the rows of a batch before their handlers run; run with `batch_parameters`."""
    rows = d.is_in_parameter(t.inbox.c.event_id, _EVENT_IDS)
    return d.lock_rows(t.inbox, _may_be_settled(t, rows, _GROUP, _TOKEN, InboxStatus.PROCESSED))


@built_once
def processed(t: Tables, d: Dialect) -> Update:
    """Settle a row in the transaction of its effect; run by `guarded_session.settle`."""
    settled = _write_back(t, _GROUP, _EVENT_ID, _TOKEN, InboxStatus.PROCESSED)
    return _in_its_transaction(settled, d)


@built_once
def compensated(t: Tables, d: Dialect) -> Update:
    """Settle a rollback, and record which event it took back; run like `processed`."""
    return processed(t, d).values(compensated_id=bindparam(COMPENSATED, type_=Uuid()))


@built_once
def all_processed(t: Tables, d: Dialect) -> Update:
    """Settle the rows of a batch in the transaction of their effects; run like `processed`."""
    return _in_its_transaction(_write_back_all(t, d, InboxStatus.PROCESSED), d)


@built_once
def all_refused(t: Tables, d: Dialect) -> Update:
    """Give up rows of a batch in the transaction of the others' effects; run like `processed`.

    With `refusal_parameters`.
    """
    refused = _in_its_transaction(_write_back_all(t, d, InboxStatus.MAX_RECONSUMED), d)
    event = func.replace(cast(t.inbox.c.event_id, Text), "-", "")
    return refused.values(last_error=d.text_of(_REASONS, event))


def refusal_parameters(group: str, reasons: Mapping[UUID, str], token: UUID) -> dict[str, Any]:
    """Return the parameters of `all_refused`: the reason of each event."""
    given = {event_id.hex: storable(reason) for event_id, reason in reasons.items()}
    return batch_parameters(group, reasons, token) | {_REASONS: given}


def _in_its_transaction(settled: Update, d: Dialect) -> Update:
    settled = settled.where(d.is_transaction(TRANSACTION)).values(
        settled_at=bindparam(LOCKED_AT, type_=Timestamp()), last_error=None
    )
    return d.returning_made_temporary(settled)


@built_once
def release(t: Tables, d: Dialect) -> Update:
    """Undo the start of attempts of a batch; run with `batch_parameters`."""
    i = t.inbox
    return _write_back_all(t, d, InboxStatus.PROCESSING).values(attempts=i.c.attempts - 1)


def note(t: Tables, d: Dialect, *, reason: str) -> Update:
    """Record why the process of a batch ends; run with `batch_parameters`."""
    i = t.inbox
    return (
        update(i)
        .where(d.is_in_parameter(i.c.event_id, _EVENT_IDS), i.c.consumer_group == _GROUP)
        .where(i.c.lease_token == _TOKEN)
        .values(last_error=storable(reason))
    )


def batch_parameters(group: str, ids: Iterable[UUID], token: UUID) -> dict[str, Any]:
    """Return the parameters of the statements that are run for a batch."""
    return {_GROUP.key: group, _TOKEN.key: token, **batch_ids(ids)}


def batch_ids(ids: Iterable[UUID]) -> dict[str, Any]:
    """Return the parameter of `batch_parameters` that names the rows."""
    return {_EVENT_IDS: list(ids)}


def attempt_parameters(
    group: str, event_id: UUID, source: str, token: UUID, lease: timedelta = timedelta(0)
) -> dict[str, Any]:
    """Return the parameters of the statements that are run for each event."""
    return {
        _GROUP.key: group,
        _EVENT_ID.key: event_id,
        _SOURCE.key: source,
        _TOKEN.key: token,
        _LEASE_SECONDS.key: lease.total_seconds(),
    }


def postpone(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    event_id: UUID,
    token: UUID,
    delay: timedelta,
    reason: str,
) -> Update:
    """Defer a row until its next attempt."""
    return _write_back(t, group, event_id, token, InboxStatus.PROCESSING).values(
        due_at=d.later(delay), last_error=storable(reason)
    )


def defer(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    event_id: UUID,
    token: UUID,
    delay: timedelta,
    reason: str,
) -> Update:
    """Undo the start of an attempt, and defer the row."""
    deferred = postpone(
        t, d, group=group, event_id=event_id, token=token, delay=delay, reason=reason
    )
    return deferred.values(attempts=t.inbox.c.attempts - 1)


def give_up(
    t: Tables,
    d: Dialect,
    *,
    group: str,
    event_id: UUID,
    token: UUID,
    target: InboxStatus,
    attempts: int,
    reason: str,
) -> Update:
    """Settle a row whose attempts are used up."""
    return _write_back(t, group, event_id, token, target).values(
        settled_at=d.now(),
        attempts=attempts,
        last_error=storable(reason),
        awaits_operator=target is InboxStatus.DEAD,
    )


def replay(
    t: Tables, d: Dialect, *, group: str, event_id: UUID, source: str
) -> ReturningUpdate[Any]:
    """Process a DEAD rollback or event again, with all its attempts."""
    i = t.inbox
    return (
        update(i)
        .where(is_row(t, group, event_id, source), i.c.status == InboxStatus.DEAD.value)
        .values(
            status=InboxStatus.PROCESSING.value,
            attempts=0,
            due_at=d.now(),
            settled_at=None,
            awaits_operator=False,
        )
        .returning(i.c.event_id)
    )


def is_row(t: Tables, group: Any, event_id: Any, source: Any) -> ColumnElement[bool]:
    """Whether a row belongs to an event in a group."""
    i = t.inbox
    return and_(i.c.event_id == event_id, i.c.consumer_group == group, i.c.source == source)


def _write_back(t: Tables, group: Any, event_id: Any, token: Any, target: InboxStatus) -> Update:
    """End an attempt's lease on its row, if the row still carries its token."""
    return _end_lease(t, t.inbox.c.event_id == event_id, group, token, target)


def _write_back_all(t: Tables, d: Dialect, target: InboxStatus) -> Update:
    return _end_lease(t, d.is_in_parameter(t.inbox.c.event_id, _EVENT_IDS), _GROUP, _TOKEN, target)


def _end_lease(
    t: Tables, rows: ColumnElement[bool], group: Any, token: Any, target: InboxStatus
) -> Update:
    return (
        update(t.inbox)
        .where(_may_be_settled(t, rows, group, token, target))
        .values(status=target.value, lease_token=None, lease_until=None, together=false())
    )


def _may_be_settled(
    t: Tables, rows: ColumnElement[bool], group: Any, token: Any, target: InboxStatus
) -> ColumnElement[bool]:
    return and_(
        rows,
        t.inbox.c.consumer_group == group,
        t.inbox.c.lease_token == token,
        _may_become(t, target, InboxStatus.PROCESSING),
    )


def _may_start(t: Tables) -> ColumnElement[bool]:
    # Only an operator's `replay` starts a settled row again.
    return _may_become(t, InboxStatus.PROCESSING, InboxStatus.INIT, InboxStatus.PROCESSING)


def _may_become(t: Tables, target: InboxStatus, *among: InboxStatus) -> ColumnElement[bool]:
    sources = INBOX.sources_of(target, among=among)
    return t.inbox.c.status.in_([s.value for s in sources])
