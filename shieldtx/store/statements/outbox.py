"""The statements on the outbox table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Float,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    union_all,
    update,
)

from shieldtx.events import storable
from shieldtx.states import OUTBOX, OutboxStatus
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.statements.envelopes import envelope_columns
from shieldtx.store.tables import Tables, Timestamp


def insert(t: Tables, d: StoreDialect) -> Insert:
    """Store new events; `delay_seconds` and `at` of each choose when it is due."""
    chosen = func.coalesce(
        bindparam("at", type_=Timestamp()), d.later(bindparam("delay_seconds", type_=Float))
    )
    return t.outbox.insert().values(
        status=OutboxStatus.INIT.value,
        attempts=0,
        holds_key=False,
        unconfirmed=False,
        due_at=chosen,
        created_at=d.now(),
    )


def claim(
    t: Tables, d: StoreDialect, *, relay: str, token: UUID, limit: int, turn: int, shards: int
) -> Update:
    """Lease up to `limit` rows of the relay's shards to it and return them.

    `turn` moves the shard that is served first, so that a full one cannot starve the others.
    """
    leased = _leased_shards(t, d, relay)
    mine = leased.select().order_by((leased.c.shard + turn) % literal(shards)).cte("mine")
    # The waiting line first: its rows are older, and each holds back its key.
    ready = union_all(
        select(_due_in_waiting_line(t, d, mine, limit).subquery().c.event_id),
        select(_next_in_line(t, d, mine, limit).subquery().c.event_id),
    ).limit(limit)
    # Materialized: chosen once, whatever the planner thinks of it.
    chosen = ready.cte("ready").prefix_with("MATERIALIZED")
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id.in_(select(chosen.c.event_id)), _is_claimable(o, d))
        .values(
            status=OutboxStatus.PROCESSING.value,
            attempts=o.c.attempts + 1,
            # Whoever had it until its lease ran out may have sent it, and cannot be asked.
            unconfirmed=or_(o.c.unconfirmed, o.c.status == OutboxStatus.PROCESSING.value),
            lease_token=token,
            # A row's lease ends with its shard's: whoever owns the shard next may take both.
            lease_until=select(func.min(mine.c.lease_until)).scalar_subquery(),
        )
        .returning(
            *envelope_columns(o, "created_at"),
            o.c.seq,
            o.c.attempts,
            o.c.unconfirmed,
            d.seconds_until(o.c.lease_until),
        )
    )


def processed(t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID]) -> Update:
    """Settle acknowledged rows."""
    return _write_back(t, d, token, ids, OutboxStatus.PROCESSED).values(
        settled_at=d.now(), last_error=None
    )


def release(
    t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID], *, reason: str, unconfirmed: bool
) -> Update:
    """Give rows back where they were, without counting the attempt."""
    statement = _write_back(t, d, token, ids, OutboxStatus.INIT).values(
        attempts=t.outbox.c.attempts - 1, last_error=storable(reason)
    )
    return statement.values(unconfirmed=True) if unconfirmed else statement


def withdraw(t: Tables, d: StoreDialect, shards: Sequence[int]) -> Update:
    """Give back what is leased in these shards, as it was before its claim."""
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


def retry(
    t: Tables, d: StoreDialect, token: UUID, event_id: UUID, *, delay: timedelta, reason: str
) -> Update:
    """Let a row wait for its next attempt, at the head of its key unless its delay was chosen."""
    o = t.outbox
    return _write_back(t, d, token, [event_id], OutboxStatus.INIT).values(
        due_at=d.later(delay),
        holds_key=or_(not_(o.c.waiting), o.c.holds_key),
        waiting=True,
        last_error=storable(reason),
    )


def failed(t: Tables, d: StoreDialect, token: UUID, event_id: UUID, *, reason: str) -> Update:
    """Settle a row that is never to be delivered."""
    return _write_back(t, d, token, [event_id], OutboxStatus.FAILED).values(
        settled_at=d.now(), last_error=storable(reason)
    )


def cancel(t: Tables, d: StoreDialect, event_id: UUID) -> Update:
    """Discard an event with a chosen delay that is not due yet."""
    o = t.outbox
    was_delayed = and_(o.c.waiting, not_(o.c.holds_key))
    return (
        update(o)
        .where(
            o.c.event_id == event_id,
            o.c.status == OutboxStatus.INIT.value,
            was_delayed,
            o.c.due_at > d.now(),
        )
        .values(status=OutboxStatus.DISCARDED.value, settled_at=d.now())
    )


def replay(t: Tables, d: StoreDialect, event_id: UUID) -> Update:
    """Put a FAILED event back in line, with all its attempts before it."""
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status == OutboxStatus.FAILED.value)
        .values(
            status=OutboxStatus.INIT.value,
            attempts=0,
            waiting=False,
            holds_key=False,
            due_at=d.now(),
            settled_at=None,
        )
        .returning(o.c.event_id)
    )


def _write_back(
    t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID], target: OutboxStatus
) -> Update:
    """End a claim's hold on rows that still carry its token."""
    o = t.outbox
    return (
        update(o)
        .where(
            d.among(o.c.event_id, ids, o.c.event_id.type),
            o.c.lease_token == token,
            _leaves_its_claim_for(o, target),
        )
        .values(status=target.value, lease_token=None, lease_until=None)
    )


def _leaves_its_claim_for(table: Table, target: OutboxStatus) -> ColumnElement[bool]:
    sources = OUTBOX.sources_of(target, among=(OutboxStatus.PROCESSING,))
    return table.c.status.in_([s.value for s in sources])


def _leased_shards(t: Tables, d: StoreDialect, relay: str) -> CTE:
    """Select the relay's shards, locked so that none changes hands before the claim commits."""
    s = t.shard
    return (
        select(s.c.shard, s.c.lease_until)
        .where(s.c.owner == relay, s.c.lease_until > d.now())
        .order_by(s.c.shard)
        .with_for_update(read=True)
        .cte("leased")
    )


def _next_in_line(t: Tables, d: StoreDialect, mine: CTE, limit: int) -> Select[Any]:
    """Select the next rows of each shard's main line whose key is not held back."""
    o = t.outbox.alias("line")
    rows = (
        select(o.c.event_id, o.c.shard)
        .where(o.c.settled_at.is_(None), not_(o.c.waiting))
        .where(_is_claimable(o, d), not_(_is_held_back(t, o)))
        .order_by(o.c.seq)
    )
    # A quarter of the batch at most from one shard, so that a full one leaves room for the others.
    joined, right = d.first_of_each(mine, rows, "shard", max(1, limit // 4))
    return select(right.c.event_id).select_from(joined).limit(limit)


def _due_in_waiting_line(t: Tables, d: StoreDialect, mine: CTE, limit: int) -> Select[Any]:
    """Select the due rows of each shard's waiting line: retries and chosen delays."""
    o = t.outbox.alias("aside")
    rows = (
        select(o.c.event_id, o.c.shard)
        .where(o.c.settled_at.is_(None), o.c.waiting, o.c.due_at <= d.now())
        .where(_is_claimable(o, d), not_(_is_held_back(t, o)))
        .order_by(o.c.due_at)
        .with_for_update(skip_locked=True)
    )
    joined, right = d.first_of_each(mine, rows, "shard", max(1, limit // 4))
    return select(right.c.event_id).select_from(joined).limit(limit)


def _is_claimable(o: Any, d: StoreDialect) -> ColumnElement[bool]:
    lease_ran_out = and_(o.c.status == OutboxStatus.PROCESSING.value, o.c.lease_until <= d.now())
    return or_(o.c.status == OutboxStatus.INIT.value, lease_ran_out)


def _is_held_back(t: Tables, o: Any) -> ColumnElement[bool]:
    """An earlier row of the key waits for its retry."""
    earlier = t.outbox.alias("earlier")
    return exists().where(
        earlier.c.shard == o.c.shard,
        earlier.c.key == o.c.key,
        earlier.c.settled_at.is_(None),
        earlier.c.waiting,
        earlier.c.holds_key,
        earlier.c.seq < o.c.seq,
    )
