"""The statements on the outbox table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Insert,
    Integer,
    Select,
    Table,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from shieldtx.buffer import Posting
from shieldtx.events import shard_of, storable
from shieldtx.states import OUTBOX, OutboxStatus
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.low_water import Sight
from shieldtx.store.statements.envelopes import envelope_columns, values_of
from shieldtx.store.tables import Tables

_RELAY = bindparam("of_relay", type_=Text())
_TOKEN = bindparam("with_token", type_=Uuid())
_LIMIT = bindparam("at_most", type_=Integer())
_PART = bindparam("at_most_of_each", type_=Integer())
_START = bindparam("start_at", type_=BigInteger())
_KNOWN = bindparam("known_shards", type_=BigInteger())
_ADDRESSES = "at_addresses"


def insert(t: Tables, d: StoreDialect) -> Insert:
    """Store new events; `delay_seconds` and `at` of each choose when it is due."""
    return t.outbox.insert().values(_of_new_event(d))


def insert_unknown(t: Tables, d: StoreDialect) -> ReturningInsert[Any]:
    """Store a new event as `insert` does, unless any unique key knows it; return its id if not."""
    return d.insert_new(t.outbox).values(_of_new_event(d)).returning(t.outbox.c.event_id)


def parameters_of(posting: Posting, d: StoreDialect, *, shards: int) -> dict[str, Any]:
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


def claim(t: Tables, d: StoreDialect) -> ReturningUpdate[Any]:
    """Lease up to a limit of rows of the relay's shards to it and return them.

    Built once and run with `claim_parameters`. The last column is what the claim saw of its
    surroundings, see `sight_of`; the one before is the row's address.
    """
    leased = _leased_shards(t, d)
    shards = select(leased.c.shard)
    # A row's lease ends with its shard's: whoever owns the shard next may take both.
    until = func.min(leased.c.lease_until)
    # The waiting line first: its rows are older, and each holds back its key.
    ready = union_all(
        select(_due_in_waiting_line(t, d, leased).subquery().c.address),
        select(_next_in_line(t, d, leased).subquery().c.address),
    ).limit(_LIMIT)
    # Materialized: chosen once, whatever the planner thinks of it.
    chosen = ready.cte("ready").prefix_with("MATERIALIZED")
    o = t.outbox
    return (
        update(o)
        .where(d.is_in_rows(d.address(o), select(chosen.c.address)), _is_claimable(o, d))
        .values(
            status=OutboxStatus.PROCESSING.value,
            attempts=o.c.attempts + 1,
            # Whoever had it until its lease ran out may have sent it, and cannot be asked.
            unconfirmed=or_(o.c.unconfirmed, o.c.status == OutboxStatus.PROCESSING.value),
            lease_token=_TOKEN,
            lease_until=select(until).scalar_subquery(),
        )
        .returning(
            *envelope_columns(o, "created_at"),
            o.c.seq,
            o.c.attempts,
            o.c.unconfirmed,
            o.c.waiting,
            case((and_(o.c.waiting, not_(o.c.holds_key)), o.c.due_at)),
            select(d.seconds_until(until)).scalar_subquery(),
            d.address(o),
            d.sight(leased, exists(shards.where(_has_a_key_on_hold(t, leased))), chosen),
        )
    )


def claim_parameters(
    *, relay: str, token: UUID, limit: int, start: int, known: int
) -> dict[str, Any]:
    """Return the parameters of a claim.

    It looks from the number `start` of the sequence on, if the relay's shards are those whose
    digest is `known` and no key of them waits for a retry; from the beginning otherwise.
    """
    return {
        _RELAY.key: relay,
        _TOKEN.key: token,
        _LIMIT.key: limit,
        # So that a full shard leaves room for the others among those that wait.
        _PART.key: max(1, limit // 4),
        _START.key: start,
        _KNOWN.key: known,
    }


def sight_of(seen: str) -> Sight | None:
    """Read what a claim saw; None where the database does not tell."""
    if not seen:
        return None
    shards, held, oldest_running, next_to_run, chosen = map(int, seen.split())
    return Sight(
        shards=shards,
        held=bool(held),
        oldest_running=oldest_running,
        next_to_run=next_to_run,
        chosen=chosen,
    )


def processed(t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID]) -> Update:
    """Settle acknowledged rows."""
    return _write_back(t, d, token, ids, OutboxStatus.PROCESSED).values(
        settled_at=d.now(), last_error=None
    )


def processed_there(t: Tables, d: StoreDialect) -> Update:
    """Settle acknowledged rows by their addresses; built once, run with `place_parameters`."""
    o = t.outbox
    return (
        update(o)
        .where(d.is_among(d.address(o), _ADDRESSES), o.c.lease_token == _TOKEN)
        .where(_leaves_its_claim_for(o, OutboxStatus.PROCESSED))
        .values(
            status=OutboxStatus.PROCESSED.value,
            lease_token=None,
            lease_until=None,
            settled_at=d.now(),
            last_error=None,
        )
    )


def place_parameters(token: UUID, addresses: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of statements that go by rows' addresses."""
    return {_TOKEN.key: token, _ADDRESSES: addresses}


def release(
    t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID], *, reason: str, unconfirmed: bool
) -> Update:
    """Give rows back where they were, without counting the attempt."""
    statement = unclaim(t, d, token, ids).values(last_error=storable(reason))
    return statement.values(unconfirmed=True) if unconfirmed else statement


def unclaim(t: Tables, d: StoreDialect, token: UUID, ids: Sequence[UUID]) -> Update:
    """Give rows back as they were before their claim."""
    return _write_back(t, d, token, ids, OutboxStatus.INIT).values(attempts=t.outbox.c.attempts - 1)


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


def replay(t: Tables, d: StoreDialect, event_id: UUID) -> Update:
    """Put a FAILED event back in line, with all its attempts before it."""
    o = t.outbox
    return (
        update(o)
        .where(o.c.event_id == event_id, o.c.status == OutboxStatus.FAILED.value)
        .values(in_line_again(d))
        .returning(o.c.event_id)
    )


def in_line_again(d: StoreDialect) -> dict[str, Any]:
    """Return the columns of a settled row that has all its attempts before it once more.

    It holds back nobody: later events of its key may have been published.
    """
    return {
        "status": OutboxStatus.INIT.value,
        "attempts": 0,
        "waiting": False,
        "holds_key": False,
        "due_at": d.now(),
        "settled_at": None,
    }


def _of_new_event(d: StoreDialect) -> dict[str, Any]:
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


def _leased_shards(t: Tables, d: StoreDialect) -> CTE:
    """Select the relay's shards, locked so that none changes hands before the claim commits."""
    s = t.shard
    return (
        select(s.c.shard, s.c.epoch, s.c.lease_until)
        .where(s.c.owner == _RELAY, s.c.lease_until > d.now())
        .order_by(s.c.shard)
        .with_for_update(read=True)
        .cte("leased")
    )


def _next_in_line(t: Tables, d: StoreDialect, leased: CTE) -> Select[Any]:
    """Select the next rows of the main line whose key is not held back, in the order of writing.

    So rows that were written together, and lie together, are claimed together.
    """
    o = t.outbox.alias("line")
    return (
        select(d.address(o).label("address"))
        .where(o.c.settled_at.is_(None), not_(o.c.waiting))
        .where(o.c.seq >= _start(t, d, leased), d.is_in_rows(o.c.shard, select(leased.c.shard)))
        .where(_is_claimable(o, d), not_(_is_held_back(t, o)))
        .order_by(o.c.seq)
        .limit(_LIMIT)
    )


def _start(t: Tables, d: StoreDialect, leased: CTE) -> ColumnElement[int]:
    on_hold = exists(select(leased.c.shard).where(_has_a_key_on_hold(t, leased)))
    holds = and_(d.digest(leased) == _KNOWN, not_(on_hold))
    return select(case((holds, _START), else_=literal(0, BigInteger()))).scalar_subquery()


def _has_a_key_on_hold(t: Tables, leased: CTE) -> ColumnElement[bool]:
    o = t.outbox.alias("on_hold")
    return exists().where(
        o.c.shard == leased.c.shard, o.c.settled_at.is_(None), o.c.waiting, o.c.holds_key
    )


def _due_in_waiting_line(t: Tables, d: StoreDialect, leased: CTE) -> Select[Any]:
    """Select the due rows of each shard's waiting line: retries and chosen delays."""
    o = t.outbox.alias("aside")
    rows = (
        select(d.address(o).label("address"), o.c.shard)
        .where(o.c.settled_at.is_(None), o.c.waiting, o.c.due_at <= d.now())
        .where(_is_claimable(o, d), not_(_is_held_back(t, o)))
        .order_by(o.c.due_at)
        .with_for_update(skip_locked=True)
    )
    joined, right = d.first_of_each(leased, rows, "shard", _PART)
    return select(right.c.address).select_from(joined).limit(_LIMIT)


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
