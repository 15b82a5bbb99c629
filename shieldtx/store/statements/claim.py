"""The claim: which rows a relay gets next, and the statement that leases them to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Text,
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
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.states import OutboxStatus
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.low_water import Sight
from shieldtx.store.statements.envelopes import envelope_columns
from shieldtx.store.tables import Tables

_RELAY = bindparam("of_relay", type_=Text())
_TOKEN = bindparam("with_token", type_=Uuid())
_LIMIT = bindparam("at_most", type_=Integer())
_PART = bindparam("at_most_of_each", type_=Integer())
_START = bindparam("start_at", type_=BigInteger())
_KNOWN = bindparam("known_shards", type_=BigInteger())


def claim(t: Tables, d: StoreDialect) -> ReturningUpdate[Any]:
    """Lease up to a limit of rows of the relay's shards to it and return them.

    Built once and run with `parameters`. The last column is what the claim saw of its
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


def parameters(*, relay: str, token: UUID, limit: int, start: int, known: int) -> dict[str, Any]:
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
