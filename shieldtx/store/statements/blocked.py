"""The statements on blocked rows: those that left the line because an earlier row holds their key.

A claim looks at the line alone. A row that is met there behind a held key leaves it: it holds its
key (`holds_key`) and waits for no time (`not waiting`). When the first row that holds the key is a
blocked one, nothing is before it any more, and it comes back into the line. Order per key does not
depend on when a row is blocked or unblocked, since each holds the later rows of its key; only the
cost of a claim does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    SmallInteger,
    Text,
    Update,
    and_,
    bindparam,
    exists,
    not_,
    select,
    tuple_,
    update,
)

from shieldtx.domain.states import OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.claim import RELAY, first_holder, leased_shards
from shieldtx.store.tables import Tables, in_line

_SHARD = bindparam("of_shard", type_=SmallInteger())
_KEY = bindparam("after_key", type_=Text())
_SEQ = bindparam("after_seq", type_=BigInteger())
_UPTO = bindparam("upto_seq", type_=BigInteger())
_SIZE = bindparam("at_most", type_=Integer())


Key: TypeAlias = tuple[int, str]
"""A key and the shard of its rows."""


class Position(NamedTuple):
    """How far a shard's blocked rows were looked at, in the order of their index."""

    shard: int
    key: str = ""
    seq: int = 0
    held: frozenset[str] = frozenset()
    """The sources of which one of the key's rows up to there waits for its retry."""


@built_once
def leased(t: Tables, d: Dialect) -> Select[Any]:
    """Select the relay's shards; none changes hands before the end. Run with `of_relay`."""
    return select(leased_shards(t, d).c.shard)


@built_once
def shards_with_blocked_keys(t: Tables, d: Dialect) -> Select[Any]:
    """Select the relay's shards in which some key is held; run with `of_relay`."""
    leased = leased_shards(t, d)
    o = t.outbox
    holds = exists().where(o.c.shard == leased.c.shard, o.c.settled_at.is_(None), o.c.holds_key)
    return select(leased.c.shard).where(holds)


def of_relay(relay: str) -> dict[str, Any]:
    """Return the parameters of `leased` and `shards_with_blocked_keys`."""
    return {RELAY.key: relay}


@built_once
def block(t: Tables, d: Dialect) -> Update:
    """Take the rows behind held keys out of a part of the line; run with `part`."""
    o, line = t.outbox, t.outbox.alias("line")
    rows, earlier = d.look_up(line, first_holder(t, line))
    held = (
        select(d.address(line))
        .select_from(rows)
        .where(in_part(t, d, line))
        .where(line.c.status == OutboxStatus.INIT.value, earlier < line.c.seq)
    )
    # Materialized: chosen once, whatever the planner thinks of it.
    chosen = select(*held.cte("chosen").prefix_with("MATERIALIZED").c)
    return (
        update(o)
        .where(d.is_in_rows(d.address(o), chosen))
        .where(o.c.status == OutboxStatus.INIT.value, not_(o.c.waiting), o.c.settled_at.is_(None))
        .values(holds_key=True)
    )


def in_part(t: Tables, d: Dialect, o: Any) -> ColumnElement[bool]:
    """Test whether a row is in a part of the line, in a shard of the relay; run with `part`."""
    leased = select(leased_shards(t, d).c.shard)
    return and_(in_line(o), o.c.seq > _SEQ, o.c.seq <= _UPTO, d.is_in_rows(o.c.shard, leased))


def part(relay: str, after: int, upto: int) -> dict[str, Any]:
    """Return the parameters of `in_part`."""
    return {RELAY.key: relay, _SEQ.key: after, _UPTO.key: upto}


def block_these(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Update:
    """Take rows out of the line."""
    o = t.outbox
    return (
        update(o)
        .where(d.is_in(o.c.event_id, ids, o.c.event_id.type))
        .where(o.c.status == OutboxStatus.INIT.value, not_(o.c.waiting))
        .values(holds_key=True)
    )


@built_once
def holders(t: Tables) -> Select[Any]:
    """Select a window of the rows of a shard that hold their key, in the order of their index.

    Run with `after`.
    """
    o = t.outbox
    return _holders(o).where(tuple_(o.c.key, o.c.seq) > tuple_(_KEY, _SEQ))


@built_once
def holders_of_key(t: Tables) -> Select[Any]:
    """Select the same of one key; run with `after`."""
    o = t.outbox
    return _holders(o).where(o.c.key == _KEY, o.c.seq > _SEQ)


def _holders(o: Any) -> Select[Any]:
    return (
        select(o.c.event_id, o.c.key, o.c.seq, o.c.source, o.c.waiting)
        .where(o.c.settled_at.is_(None), o.c.holds_key, o.c.shard == _SHARD)
        .order_by(o.c.key, o.c.seq)
        .limit(_SIZE)
    )


def free_among(rows: Iterable[Any], position: Position) -> tuple[dict[UUID, int], Position]:
    """Return which rows of `holders` from `position` on may be unblocked, and where they end.

    Each comes with its number in the sequence.

    They are all in one order, so that no row needs a look of its own for what is before it: of each
    key and source, the rows before the first that waits for its retry.
    """
    free = {}
    for event_id, key, seq, source, waits in rows:
        held = position.held if key == position.key else frozenset()
        if waits:
            held |= {source}
        position = Position(position.shard, key, seq, held)
        if source not in held:
            free[event_id] = seq
    return free, position


def after(position: Position, size: int) -> dict[str, Any]:
    """Return the parameters of `holders` and `holders_of_key`."""
    return {
        _SHARD.key: position.shard,
        _KEY.key: position.key,
        _SEQ.key: position.seq,
        _SIZE.key: size,
    }


def unblock(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Update:
    """Bring rows back into the line."""
    o = t.outbox
    return (
        update(o)
        .where(d.is_in(o.c.event_id, ids, o.c.event_id.type), not_(o.c.waiting))
        .values(holds_key=False)
    )
