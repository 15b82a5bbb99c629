"""The statements on inbox rows: what moves them, and what finds them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.events import storable
from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from shieldtx.ports import Handled
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import SINCE, TRANSACTION, Dialect
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.tables import Tables

_GROUP = bindparam("of_group", type_=Text())
_EVENT_ID = bindparam("of_event", type_=Uuid())
_SOURCE = bindparam("of_source", type_=Text())
_TOKEN = bindparam("with_token", type_=Uuid())
_LEASE_SECONDS = bindparam("lease_seconds", type_=Float())
_EVENT_IDS = "of_events"
COMPENSATED = "compensated"
_MOST = bindparam("most", type_=Integer())
_BYTES = bindparam("bytes_at_most", type_=BigInteger())
_HANDLED = {TxKind.COMMIT: "handled_commits", TxKind.ROLLBACK: "handled_rollbacks"}


def due(t: Tables, d: Dialect) -> Select[Any]:
    """Select rows whose turn it is, in the order of arrival; built once, run with its limits.

    The limits are one of rows and one of their payloads' bytes; one row is selected however large
    it is. Rows that the worker has no handler for are left out: they would fill the limit for ever.
    """
    i = t.inbox.alias("waiting")
    columns = envelope_columns(i, "event_time")
    line = (
        select(*columns, i.c.seq, d.bytes_of(i.c.payload).label("size"))
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), _is_handled(i, d))
        .where(_is_free(i, d), not_(_is_held_back(t, i)))
        .order_by(i.c.seq)
        .limit(_MOST)
        .subquery("line")
    )
    before = func.sum(line.c.size).over(order_by=line.c.seq, rows=(None, -1))
    summed = select(line, before.label("before")).subquery("summed")
    return (
        select(*(summed.c[column.name] for column in columns))
        .where(func.coalesce(summed.c.before, 0) < _BYTES)
        .order_by(summed.c.seq)
    )


def pending(t: Tables, d: Dialect) -> Select[Any]:
    """Count a group's unfinished rows by origin; built once, run with `group_parameters`."""
    i = t.inbox
    origin = (i.c.topic, i.c.tx_kind, i.c.record_partition)
    return (
        select(*origin, func.count())
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), _is_handled(i, d))
        .where(i.c.record_partition.is_not(None))
        .group_by(*origin)
    )


def unhandled(t: Tables, d: Dialect) -> Select[Any]:
    """Count unfinished rows without a handler by type and kind, up to a limit; built once."""
    i = t.inbox
    rows = (
        select(i.c.event_type, i.c.tx_kind)
        .where(i.c.consumer_group == _GROUP, i.c.settled_at.is_(None), not_(_is_handled(i, d)))
        .limit(_MOST)
        .subquery()
    )
    return select(*rows.c, func.count()).group_by(*rows.c)


def group_parameters(
    group: str, handled: Handled, limit: int | None = None, limit_bytes: int | None = None
) -> dict[str, Any]:
    """Return the parameters of the statements on the unfinished rows of a group."""
    of_kinds = {
        _HANDLED[kind]: sorted(name for name, its in handled if its is kind) for kind in TxKind
    }
    return {_GROUP.key: group, _MOST.key: limit, _BYTES.key: limit_bytes} | of_kinds


def start_attempt(t: Tables, d: Dialect) -> ReturningUpdate[Any]:
    """Count an attempt, if it is the row's turn and no transaction is at work on it.

    One that died in a batch was counted and may not have run at all: it goes on under its number.
    Built once and run for each event, with the parameters of `attempt_parameters`.
    """
    w = t.inbox.alias("waiting")
    free = (
        select(w.c.event_id)
        .where(w.c.event_id == _EVENT_ID, w.c.consumer_group == _GROUP, w.c.source == _SOURCE)
        .where(w.c.settled_at.is_(None), _is_free(w, d), not_(_is_held_back(t, w)))
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
            together=false(),
            lease_token=_TOKEN,
            lease_until=d.later(_LEASE_SECONDS),
        )
        .returning(i.c.attempts, i.c.record_partition, i.c.record_offset)
    )


def held(t: Tables, d: Dialect) -> Select[Any] | ReturningUpdate[Any]:
    """Lock a row before its handler runs; built once, run with `attempt_parameters`."""
    row = t.inbox.c.event_id == _EVENT_ID
    return d.held(t.inbox, _may_be_settled(t, row, _GROUP, _TOKEN, InboxStatus.PROCESSED))


def all_held(t: Tables, d: Dialect) -> Select[Any] | ReturningUpdate[Any]:
    """Lock the rows of a batch before their handlers run; run with `batch_parameters`."""
    rows = d.is_one_of(t.inbox.c.event_id, _EVENT_IDS)
    return d.held(t.inbox, _may_be_settled(t, rows, _GROUP, _TOKEN, InboxStatus.PROCESSED))


def processed(t: Tables, d: Dialect) -> Update:
    """Settle a row in the transaction of its effect; built once, run by `lent_session.settle`."""
    settled = _write_back(t, _GROUP, _EVENT_ID, _TOKEN, InboxStatus.PROCESSED)
    return _in_its_transaction(settled, d)


def compensated(t: Tables, d: Dialect) -> Update:
    """Settle a rollback, and note which event it took back; run as `processed`."""
    return processed(t, d).values(compensated_id=bindparam(COMPENSATED, type_=Uuid()))


def all_processed(t: Tables, d: Dialect) -> Update:
    """Settle the rows of a batch in the transaction of their effects; run as `processed`."""
    return _in_its_transaction(_write_back_all(t, d, InboxStatus.PROCESSED), d)


def _in_its_transaction(settled: Update, d: Dialect) -> Update:
    return settled.where(d.is_transaction(TRANSACTION)).values(
        settled_at=bindparam(SINCE, type_=Timestamp()), last_error=None
    )


def release(t: Tables, d: Dialect) -> Update:
    """Take the start of attempts of a batch back; built once, run with `batch_parameters`."""
    i = t.inbox
    return _write_back_all(t, d, InboxStatus.PROCESSING).values(attempts=i.c.attempts - 1)


def note(t: Tables, d: Dialect, *, reason: str) -> Update:
    """Write down why the process of a batch ends; run with `batch_parameters`."""
    i = t.inbox
    return (
        update(i)
        .where(d.is_one_of(i.c.event_id, _EVENT_IDS), i.c.consumer_group == _GROUP)
        .where(i.c.lease_token == _TOKEN)
        .values(last_error=storable(reason))
    )


def batch_parameters(group: str, ids: Iterable[UUID], token: UUID) -> dict[str, Any]:
    """Return the parameters of the statements that are run for a batch."""
    return {_GROUP.key: group, _EVENT_IDS: list(ids), _TOKEN.key: token}


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
    """Let a row wait for its next attempt."""
    return _write_back(t, group, event_id, token, InboxStatus.PROCESSING).values(
        due_at=d.later(delay), last_error=storable(reason)
    )


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
        settled_at=d.now(), attempts=attempts, last_error=storable(reason)
    )


def replay(
    t: Tables, d: Dialect, *, group: str, event_id: UUID, source: str
) -> ReturningUpdate[Any]:
    """Give a DEAD rollback all its attempts again."""
    i = t.inbox
    return (
        update(i)
        .where(is_row(t, group, event_id, source), i.c.status == InboxStatus.DEAD.value)
        .values(
            status=InboxStatus.PROCESSING.value,
            attempts=0,
            due_at=d.now(),
            settled_at=None,
        )
        .returning(i.c.event_id)
    )


def is_row(t: Tables, group: Any, event_id: Any, source: Any) -> ColumnElement[bool]:
    """Whether a row is that of an event in a group."""
    i = t.inbox
    return and_(i.c.event_id == event_id, i.c.consumer_group == group, i.c.source == source)


def _write_back(t: Tables, group: Any, event_id: Any, token: Any, target: InboxStatus) -> Update:
    """End an attempt's hold on its row, if the row still carries its token."""
    return _end_hold(t, t.inbox.c.event_id == event_id, group, token, target)


def _write_back_all(t: Tables, d: Dialect, target: InboxStatus) -> Update:
    return _end_hold(t, d.is_one_of(t.inbox.c.event_id, _EVENT_IDS), _GROUP, _TOKEN, target)


def _end_hold(
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
    # A settled row is entered again by a person's word only, see `replay`.
    return _may_become(t, InboxStatus.PROCESSING, InboxStatus.INIT, InboxStatus.PROCESSING)


def _may_become(t: Tables, target: InboxStatus, *among: InboxStatus) -> ColumnElement[bool]:
    sources = INBOX.sources_of(target, among=among)
    return t.inbox.c.status.in_([s.value for s in sources])


def _is_handled(i: Any, d: Dialect) -> ColumnElement[bool]:
    return or_(
        *(
            and_(i.c.tx_kind == kind.value, d.is_one_of(i.c.event_type, names))
            for kind, names in _HANDLED.items()
        )
    )


def _is_free(i: Any, d: Dialect) -> ColumnElement[bool]:
    """Due, and in no worker's hands."""
    return and_(i.c.due_at <= d.now(), or_(i.c.lease_until.is_(None), i.c.lease_until <= d.now()))


def _is_held_back(t: Tables, i: Any) -> ColumnElement[bool]:
    """An earlier row of its key is not finished, or the event that it takes back is not.

    A rollback that waits for its event holds back nobody: the two would wait for each other.
    """
    earlier = t.inbox.alias("earlier")
    same_key = exists().where(
        earlier.c.consumer_group == i.c.consumer_group,
        earlier.c.settled_at.is_(None),
        earlier.c.topic == i.c.topic,
        earlier.c.key == i.c.key,
        earlier.c.seq < i.c.seq,
        not_(_waits_for_its_event(t, earlier)),
    )
    return or_(same_key, _waits_for_its_event(t, i))


def _waits_for_its_event(t: Tables, i: Any) -> ColumnElement[bool]:
    event = t.inbox.alias()
    return exists().where(
        event.c.consumer_group == i.c.consumer_group,
        event.c.settled_at.is_(None),
        i.c.tx_kind == TxKind.ROLLBACK.value,
        # Of two rollbacks that name each other, neither waits.
        event.c.tx_kind == TxKind.COMMIT.value,
        event.c.event_id == i.c.causation_id,
        # A rollback that names no source means an event of its service's own.
        or_(i.c.causation_source.is_(None), event.c.source == i.c.causation_source),
    )
