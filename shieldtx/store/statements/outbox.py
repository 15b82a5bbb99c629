"""The statements on the outbox table: new rows, and the outcomes of claimed rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Executable,
    Float,
    Insert,
    Select,
    Table,
    Update,
    Uuid,
    and_,
    bindparam,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from shieldtx.domain.events import shard_of, storable
from shieldtx.domain.states import OUTBOX, OutboxStatus
from shieldtx.ports.outbox import Posting
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import LOCKED_AT, TRANSACTION, Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.envelope_columns import values_of
from shieldtx.store.tables import Tables

_TOKEN = bindparam("with_token", type_=Uuid())
_ADDRESSES = "at_addresses"


_CLOCK_STEP = timedelta(hours=1)


@built_once
def insert(t: Tables, d: Dialect) -> Insert:
    """Store new events; `delay_seconds` and `at` of each event set its due time."""
    return t.outbox.insert().values(_of_new_event(d))


@built_once
def insert_unknown(t: Tables, d: Dialect) -> ReturningInsert[Any]:
    """Store a new event like `insert` and return its id, unless a unique key has it already."""
    return d.insert_new(t.outbox).values(_of_new_event(d)).returning(t.outbox.c.event_id)


def parameters_of(posting: Posting, d: Dialect, *, shards: int) -> dict[str, Any]:
    """Return the parameters of an `insert`."""
    envelope, delay = posting.envelope, posting.delay
    return (
        values_of(envelope)
        | d.next_in_sequence()
        | {
            "shard": shard_of(envelope.key, envelope.id, shards),
            "waiting": bool(delay) or posting.at is not None,
            "delay_seconds": delay.total_seconds() if delay else 0.0,
            "at": posting.at,
        }
    )


def processed(t: Tables, d: Dialect, token: UUID, ids: Sequence[UUID]) -> Update:
    """Settle acknowledged rows."""
    return _write_back(t, d, token, ids, OutboxStatus.PROCESSED).values(
        settled_at=d.now(), last_error=None
    )


@built_once
def processed_at_addresses(t: Tables, d: Dialect) -> Update:
    """Settle acknowledged rows by their addresses; run with `address_parameters`."""
    o = t.outbox
    return (
        update(o)
        .where(d.has_address_in(d.address(o), _ADDRESSES), o.c.lease_token == _TOKEN)
        .where(_leaves_its_claim_for(o, OutboxStatus.PROCESSED))
        .values(
            status=OutboxStatus.PROCESSED.value,
            lease_token=None,
            lease_until=None,
            settled_at=d.now(),
            last_error=None,
        )
    )


def address_parameters(token: UUID, addresses: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of statements that find rows by their addresses."""
    return {_TOKEN.key: token, _ADDRESSES: addresses}


def release(
    t: Tables, d: Dialect, token: UUID, ids: Sequence[UUID], *, reason: str, unconfirmed: bool
) -> Update:
    """Release rows without counting the attempt."""
    statement = unclaim(t, d, token, ids).values(last_error=storable(reason))
    return statement.values(unconfirmed=True) if unconfirmed else statement


def unclaim(t: Tables, d: Dialect, token: UUID, ids: Sequence[UUID]) -> Update:
    """Release rows in the state before their claim."""
    return _write_back(t, d, token, ids, OutboxStatus.INIT).values(attempts=t.outbox.c.attempts - 1)


def withdraw(t: Tables, d: Dialect, shards: Sequence[int]) -> Update:
    """Release all leased rows of these shards, in the state before their claim."""
    o = t.outbox
    return (
        update(o)
        .where(
            o.c.shard.in_(shards),
            o.c.settled_at.is_(None),
            _leaves_its_claim_for(o, OutboxStatus.INIT),
            o.c.lease_until > d.now(),
        )
        .values(
            status=OutboxStatus.INIT.value,
            attempts=o.c.attempts - 1,
            lease_token=None,
            lease_until=None,
        )
    )


def leased(t: Tables, d: Dialect, shards: Sequence[int]) -> Select[Any]:
    """Select the ids of all claimed rows of these shards whose leases last."""
    return select(t.outbox.c.event_id).where(_is_leased_in(t, d, shards))


def lock_leased(t: Tables, d: Dialect, shards: Sequence[int]) -> Select[Any]:
    """Select and lock those rows, except rows that another transaction has locked."""
    return leased(t, d, shards).with_for_update(skip_locked=True)


def end_leases(t: Tables, d: Dialect, shards: Sequence[int]) -> Update:
    """End the leases of all claimed rows of these shards; the next claim finds these rows.

    It finds them also if the clock of the database is set back meanwhile.
    """
    ended = d.later(-_CLOCK_STEP)
    return update(t.outbox).where(_is_leased_in(t, d, shards)).values(lease_until=ended)


def _is_leased_in(t: Tables, d: Dialect, shards: Sequence[int]) -> ColumnElement[bool]:
    o = t.outbox
    return and_(
        o.c.shard.in_(shards),
        o.c.settled_at.is_(None),
        o.c.status == OutboxStatus.PROCESSING.value,
        o.c.lease_until > d.now(),
    )


def retry(
    t: Tables, d: Dialect, token: UUID, event_id: UUID, *, delay: timedelta, reason: str
) -> Update:
    """Defer a row until its next attempt; it holds its key unless its delay was chosen."""
    o = t.outbox
    return _write_back(t, d, token, [event_id], OutboxStatus.INIT).values(
        due_at=d.later(delay),
        holds_key=or_(not_(o.c.waiting), o.c.holds_key),
        waiting=True,
        last_error=storable(reason),
    )


def lock_row(t: Tables, d: Dialect, token: UUID, event_id: UUID) -> Executable:
    """Lock a row before its local rollback runs."""
    return d.lock_rows(t.outbox, _may_be_settled(t, d, token, [event_id], OutboxStatus.FAILED))


def failed(t: Tables, d: Dialect, token: UUID, event_id: UUID, *, reason: str) -> Update:
    """Settle a row that is never to be delivered; run by `guarded_session.settle`."""
    settled = (
        _write_back(t, d, token, [event_id], OutboxStatus.FAILED)
        .where(d.is_transaction(TRANSACTION))
        .values(settled_at=bindparam(LOCKED_AT, type_=Timestamp()), last_error=storable(reason))
    )
    return d.returning_made_temporary(settled)


def replay(t: Tables, d: Dialect, event_id: UUID) -> Update:
    """Queue a FAILED event again, with all its attempts."""
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status == OutboxStatus.FAILED.value)
        .values(requeued(d))
        .returning(o.c.event_id)
    )


def requeued(d: Dialect) -> dict[str, Any]:
    """Return the values that queue a settled row again, with all its attempts.

    The row blocks no other row: later events of its key may have been published.
    """
    return {
        "status": OutboxStatus.INIT.value,
        "attempts": 0,
        "waiting": False,
        "holds_key": False,
        "due_at": d.now(),
        "settled_at": None,
    }


def _of_new_event(d: Dialect) -> dict[str, Any]:
    chosen = func.coalesce(
        bindparam("at", type_=Timestamp()), d.later(bindparam("delay_seconds", type_=Float))
    )
    return {
        "status": OutboxStatus.INIT.value,
        "attempts": 0,
        "holds_key": False,
        "unconfirmed": False,
        "due_at": chosen,
        "created_at": d.now(),
    }


def _write_back(
    t: Tables, d: Dialect, token: UUID, ids: Sequence[UUID], target: OutboxStatus
) -> Update:
    """End a claim's lease on rows that still carry its token."""
    return (
        update(t.outbox)
        .where(_may_be_settled(t, d, token, ids, target))
        .values(status=target.value, lease_token=None, lease_until=None)
    )


def _may_be_settled(
    t: Tables, d: Dialect, token: UUID, ids: Sequence[UUID], target: OutboxStatus
) -> ColumnElement[bool]:
    o = t.outbox
    return and_(
        d.is_in(o.c.event_id, ids, o.c.event_id.type),
        o.c.lease_token == token,
        _leaves_its_claim_for(o, target),
    )


def _leaves_its_claim_for(table: Table, target: OutboxStatus) -> ColumnElement[bool]:
    sources = OUTBOX.sources_of(target, among=(OutboxStatus.PROCESSING,))
    return table.c.status.in_([s.value for s in sources])
