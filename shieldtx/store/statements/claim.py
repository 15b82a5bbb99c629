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
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from shieldtx.domain.states import OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.low_water_mark import Sight
from shieldtx.store.statements.envelope_columns import envelope_columns
from shieldtx.store.tables import Tables, in_line

RELAY = bindparam("of_relay", type_=Text())
"""The relay whose shards a statement is about."""
_TOKEN = bindparam("with_token", type_=Uuid())
_BYTES = bindparam("bytes_at_most", type_=BigInteger())
_SOURCE = bindparam("of_source", type_=Text())
_LIMIT = bindparam("at_most", type_=Integer())
_PART = bindparam("at_most_of_each", type_=Integer())
_START = bindparam("start_at", type_=BigInteger())
_KNOWN = bindparam("known_shards", type_=BigInteger())
_FENCE = bindparam("fence", type_=BigInteger())
_FENCED = bindparam("fenced_shards", type_=BigInteger())


def claim(t: Tables, d: Dialect, *, of_source: bool = False) -> ReturningUpdate[Any]:
    """Lease up to a limit of rows of the relay's shards to it and return them.

    The limit is one of rows and one of their payloads' bytes; one row is claimed however large it
    is. With `of_source`, rows of other sources stay.

    Built once and run with `parameters`. The last column is what the claim saw of its
    surroundings, see `sight_of`; the one before is the row's address.
    """
    leased = leased_shards(t, d)
    shards = select(leased.c.shard)
    # Asked once: while no key is held, no row is looked at for it.
    on_hold = select(exists(shards.where(_has_a_key_on_hold(t, leased))).label("on_hold"))
    held = on_hold.cte("held").prefix_with("MATERIALIZED")
    # A row's lease ends with its shard's: whoever owns the shard next may take both.
    until = func.min(leased.c.lease_until)
    # The waiting line first: its rows are older, and each holds back its key.
    ready = union_all(
        select(_due_in_waiting_line(t, d, leased, held, of_source=of_source).subquery()),
        select(_next_in_line(t, d, leased, held, of_source=of_source).subquery()),
    ).limit(_LIMIT)
    # Materialized: chosen once, whatever the planner thinks of it.
    sized = ready.cte("ready").prefix_with("MATERIALIZED")
    before = func.sum(sized.c.size).over(rows=(None, -1)).label("before")
    summed = select(sized.c.address, before).subquery("summed")
    fits = func.coalesce(summed.c.before, 0) < _BYTES
    chosen = select(summed.c.address).where(fits).cte("chosen").prefix_with("MATERIALIZED")
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
            o.c.shard,
            o.c.attempts,
            o.c.unconfirmed,
            o.c.waiting,
            case((and_(o.c.waiting, not_(o.c.holds_key)), o.c.due_at)),
            select(d.seconds_until(until)).scalar_subquery(),
            d.address(o),
            d.sight(leased, select(held.c.on_hold).scalar_subquery(), chosen),
        )
    )


def parameters(
    *,
    relay: str,
    token: UUID,
    limit: int,
    limit_bytes: int,
    start: int,
    known: int,
    fence: int = 0,
    fenced: int = 0,
    source: str | None = None,
) -> dict[str, Any]:
    """Return the parameters of a claim; `source` for one `of_source`.

    It looks from the number `start` of the sequence on, if the relay's shards are those whose
    digest is `known` and no key of them waits for a retry. Otherwise it looks from after `fence`
    on, if they are those whose digest is `fenced`; from the beginning if not.
    """
    return {
        RELAY.key: relay,
        _TOKEN.key: token,
        _LIMIT.key: limit,
        _BYTES.key: limit_bytes,
        **({} if source is None else {_SOURCE.key: source}),
        # So that a full shard leaves room for the others among those that wait.
        _PART.key: max(1, limit // 4),
        _START.key: start,
        _KNOWN.key: known,
        _FENCE.key: fence,
        _FENCED.key: fenced,
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


def leased_shards(t: Tables, d: Dialect) -> CTE:
    """Select the relay's shards, locked so that none changes hands before the claim commits."""
    s = t.shard
    return (
        select(s.c.shard, s.c.epoch, s.c.lease_until)
        .where(s.c.owner == RELAY, s.c.lease_until > d.now())
        .order_by(s.c.shard)
        .with_for_update(read=True)
        .cte("leased")
    )


def _next_in_line(t: Tables, d: Dialect, leased: CTE, held: CTE, *, of_source: bool) -> Select[Any]:
    """Select the next rows of the main line whose key is not held back, in the order of writing.

    So rows that were written together, and lie together, are claimed together. Those behind a held
    key are few here: `store.blocked` takes them out of the line. Until it has, as after a bulk
    load, the walk starts after them (`store.fence`). Before that, keys are looked up, not rows.
    """
    o = t.outbox.alias("line")
    on_hold = select(held.c.on_hold).scalar_subquery()
    rows, earlier = d.beside(o, first_holder(t, o).where(on_hold))
    return (
        select(d.address(o).label("address"), _size(o, d))
        .select_from(rows)
        .where(*_is_of_source(o, of_source=of_source))
        .where(in_line(o))
        .where(o.c.seq >= _start(d, leased, held), d.is_in_rows(o.c.shard, select(leased.c.shard)))
        .where(_is_claimable(o, d), func.coalesce(earlier >= o.c.seq, true()))
        .order_by(o.c.seq)
        .limit(_LIMIT)
    )


def _start(d: Dialect, leased: CTE, held: CTE) -> ColumnElement[int]:
    on_hold = select(held.c.on_hold).scalar_subquery()
    shards = d.digest(leased)
    holds = and_(shards == _KNOWN, not_(on_hold))
    start = case((holds, _START), (shards == _FENCED, _FENCE + 1), else_=literal(0, BigInteger()))
    return select(start).scalar_subquery()


def _has_a_key_on_hold(t: Tables, leased: CTE) -> ColumnElement[bool]:
    o = t.outbox.alias("on_hold")
    return exists().where(o.c.shard == leased.c.shard, o.c.settled_at.is_(None), o.c.holds_key)


def _due_in_waiting_line(
    t: Tables, d: Dialect, leased: CTE, held: CTE, *, of_source: bool
) -> Select[Any]:
    """Select the due rows of each shard's waiting line: retries and chosen delays."""
    o = t.outbox.alias("aside")
    rows = (
        select(d.address(o).label("address"), _size(o, d), o.c.shard)
        .where(*_is_of_source(o, of_source=of_source))
        .where(o.c.settled_at.is_(None), o.c.waiting, o.c.due_at <= d.now())
        .where(_is_claimable(o, d), not_(_is_held_back(t, o, held)))
        .order_by(o.c.due_at)
        .with_for_update(skip_locked=True)
    )
    joined, right = d.first_of_each(leased, rows, "shard", _PART)
    return select(right.c.address, right.c.size).select_from(joined).limit(_LIMIT)


def _size(o: Any, d: Dialect) -> ColumnElement[int]:
    return d.bytes_of(o.c.payload).label("size")


def _is_of_source(o: Any, *, of_source: bool) -> list[ColumnElement[bool]]:
    return [o.c.source == _SOURCE] if of_source else [true()]


def _is_claimable(o: Any, d: Dialect) -> ColumnElement[bool]:
    lease_ran_out = and_(o.c.status == OutboxStatus.PROCESSING.value, o.c.lease_until <= d.now())
    return or_(o.c.status == OutboxStatus.INIT.value, lease_ran_out)


def _is_held_back(t: Tables, o: Any, held: CTE) -> ColumnElement[bool]:
    """Whether an earlier row of its source holds the key: it waits for its retry, or is blocked.

    One probe of an index a row, whatever the planner knows of the rows that hold their keys.
    """
    earlier = first_holder(t, o).scalar_subquery() < o.c.seq
    on_hold = select(held.c.on_hold).scalar_subquery()
    return and_(on_hold, func.coalesce(earlier, false()))


def first_holder(t: Tables, o: Any, *, is_blocked: bool = False) -> Select[Any]:
    """Select the number of the first row that holds the key of `o`, among those of its source.

    With `is_blocked`, of the first that is blocked itself. No relay of this source settles a row of
    another one: such a row would hold the key forever.
    """
    holder = t.outbox.alias("first_holder")
    return (
        select(holder.c.seq)
        .where(not_(holder.c.waiting) if is_blocked else true())
        .where(holder.c.shard == o.c.shard, holder.c.key == o.c.key)
        .where(holder.c.source == o.c.source)
        .where(holder.c.settled_at.is_(None), holder.c.holds_key)
        .order_by(holder.c.seq)
        .limit(1)
    )
