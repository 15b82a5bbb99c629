"""The statements on the fence, up to which a blocked row of its key precedes every queued row.

`shieldtx.store.fence` describes the purpose of the fence.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    true,
)

from shieldtx.domain.states import OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.blocked import in_part, part
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.statements.claim import first_holder, leased_shards
from shieldtx.store.tables import Tables, in_main_queue

_SIZE = bindparam("at_most", type_=Integer())
_SOURCE = bindparam("of_source", type_=Text())


@built_once
def ahead(t: Tables, d: Dialect) -> Select[Any]:
    """Select the snapshot of now, and the last row of the main queue; run with `of_relay`.

    The snapshot is NULL if the relay owns no shard, or if the database has no snapshots.
    """
    leased = leased_shards(t, d)
    o = t.outbox
    last = (
        select(o.c.seq).where(in_main_queue(o)).order_by(o.c.seq.desc()).limit(1).scalar_subquery()
    )
    snapshot = d.claim_snapshot(leased, literal(value=True), leased)
    seen = case((exists(select(leased.c.shard)), snapshot))
    return select(seen, func.coalesce(last, 0))


@built_once
def digest(t: Tables, d: Dialect) -> Select[Any]:
    """Select the digest of the relay's shards and their epochs; run with `of_relay`."""
    return select(d.digest(leased_shards(t, d)))


@built_once
def bounds(t: Tables, d: Dialect) -> Select[Any]:
    """Select the end of a window of the main queue, and its number of rows; run with `window`."""
    o = t.outbox
    row = (
        select(o.c.seq).where(in_part(t, d, o)).order_by(o.c.seq).limit(_SIZE).subquery("looked_at")
    )
    return select(func.coalesce(func.max(row.c.seq), 0), func.count()).select_from(row)


def window(relay: str, after: int, upto: int, size: int) -> dict[str, Any]:
    """Return the parameters of `bounds`."""
    return part(relay, after, upto) | {_SIZE.key: size}


@built_once
def unfenced(t: Tables, d: Dialect, *, only_source: bool = False) -> Select[Any]:
    """Select the first row of each key in a window that has no blocked row before it.

    The last column is whether the row may be blocked. The statement omits rows that this relay is
    publishing, and with `only_source` rows of other sources. Run with `of_source`.
    """
    o = t.outbox.alias("line")
    of_key = (o.c.shard, o.c.key, o.c.source)
    # Grouped while reading: materializing the rows first would cost more than all the rest.
    first = (
        select(*of_key, func.min(o.c.seq).label("seq"))
        .where(in_part(t, d, o))
        .where(or_(o.c.status == OutboxStatus.INIT.value, o.c.lease_until <= d.now()))
        .where(o.c.source == _SOURCE if only_source else true())
        .group_by(*of_key)
    )
    key = first.cte("each").prefix_with("MATERIALIZED")
    blocked = first_holder(t, key, is_blocked=True).scalar_subquery()
    probed = select(key, blocked.label("blocked")).cte("probed").prefix_with("MATERIALIZED")
    row = t.outbox.alias("row")
    is_new = row.c.status == OutboxStatus.INIT.value
    is_held = func.coalesce(first_holder(t, probed).scalar_subquery() < row.c.seq, false())
    return (
        select(row.c.event_id, row.c.seq, and_(is_new, is_held))
        .select_from(probed)
        .join(row, and_(row.c.seq == probed.c.seq, row.c.shard == probed.c.shard))
        .where(in_main_queue(row))
        .where(func.coalesce(probed.c.blocked >= probed.c.seq, true()))
    )


def of_source(relay: str, after: int, upto: int, source: str | None) -> dict[str, Any]:
    """Return the parameters of `unfenced`."""
    named = {} if source is None else {_SOURCE.key: source}
    return part(relay, after, upto) | named
