"""The statements on blocked rows, which left the main queue as an earlier row holds their key.

A claim reads the main queue alone. A row of a held key leaves the main queue: it then holds its key
too (`holds_key`) and waits for no time (`not waiting`). When a blocked row is the first that holds
its key, no row precedes it, and it returns to the main queue. The time of blocking and unblocking
does not affect the order per key, since each blocked row holds the later rows of its key. Only the
cost of a claim depends on that time.
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
from shieldtx.store.tables import Tables, in_main_queue

_SHARD = bindparam("of_shard", type_=SmallInteger())
_KEY = bindparam("after_key", type_=Text())
_SEQ = bindparam("after_seq", type_=BigInteger())
_UPTO = bindparam("upto_seq", type_=BigInteger())
_SIZE = bindparam("at_most", type_=Integer())


Key: TypeAlias = tuple[int, str]
"""A key and the shard of its rows."""


class Position(NamedTuple):
    """The position up to which a shard's blocked rows were read, in the order of their index."""

    shard: int
    key: str = ""
    seq: int = 0
    held: frozenset[str] = frozenset()
    """The sources that have a row of the key, up to this position, that waits for its retry."""


@built_once
def leased(t: Tables, d: Dialect) -> Select[Any]:
    """Select the relay's shards; their owner stays the same until the end. Run with `of_relay`."""
    return select(leased_shards(t, d).c.shard)


@built_once
def shards_with_blocked_keys(t: Tables, d: Dialect) -> Select[Any]:
    """Select the relay's shards that have a held key; run with `of_relay`."""
    leased = leased_shards(t, d)
    o = t.outbox
    holds = exists().where(o.c.shard == leased.c.shard, o.c.settled_at.is_(None), o.c.holds_key)
    return select(leased.c.shard).where(holds)


def of_relay(relay: str) -> dict[str, Any]:
    """Return the parameters of `leased` and `shards_with_blocked_keys`."""
    return {RELAY.key: relay}


@built_once
def block(t: Tables, d: Dialect) -> Update:
    """Remove the rows of held keys from a part of the main queue; run with `part`."""
    o, line = t.outbox, t.outbox.alias("line")
    rows, earlier = d.look_up(line, first_holder(t, line))
    held = (
        select(d.address(line))
        .select_from(rows)
        .where(in_part(t, d, line))
        .where(line.c.status == OutboxStatus.INIT.value, earlier < line.c.seq)
    )
    # Materialized: every plan chooses the rows once.
    chosen = select(*held.cte("chosen").prefix_with("MATERIALIZED").c)
    return (
        update(o)
        .where(d.is_in_rows(d.address(o), chosen))
        .where(o.c.status == OutboxStatus.INIT.value, not_(o.c.waiting), o.c.settled_at.is_(None))
        .values(holds_key=True)
    )


def in_part(t: Tables, d: Dialect, o: Any) -> ColumnElement[bool]:
    """Test whether a row is in a part of the main queue, in a shard of the relay.

    Run with `part`.
    """
    leased = select(leased_shards(t, d).c.shard)
    return and_(in_main_queue(o), o.c.seq > _SEQ, o.c.seq <= _UPTO, d.is_in_rows(o.c.shard, leased))


def part(relay: str, after: int, upto: int) -> dict[str, Any]:
    """Return the parameters of `in_part`."""
    return {RELAY.key: relay, _SEQ.key: after, _UPTO.key: upto}


def block_these(t: Tables, d: Dialect, ids: Sequence[UUID]) -> Update:
    """Remove rows from the main queue."""
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
    """Select a window of the rows that hold one key; run with `after`."""
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
    """Return the rows of `holders` that may be unblocked, and the position after the last row.

    Each row id maps to its number in the sequence. `position` is the position before the first row.

    The rows are sorted, so no row needs its own query for earlier rows. Free are, of each key and
    source, the rows before the first that waits for its retry.
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
    """Return rows to the main queue."""
    o = t.outbox
    return (
        update(o)
        .where(d.is_in(o.c.event_id, ids, o.c.event_id.type), not_(o.c.waiting))
        .values(holds_key=False)
    )
