"""The statements that count rows without reading whole tables: each stops after `limit` rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    case,
    cast,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    union_all,
)

from shieldtx.domain.states import OutboxStatus
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import Dialect
from shieldtx.store.tables import Tables, in_main_queue, needs_operator

MAIN_QUEUE = "main queue"
BLOCKED = "blocked"
RETRYING = "retrying"
DELAYED = "delayed"
HALF = "half"


def now(d: Dialect) -> Select[Any]:
    """Select the time of the database."""
    return select(d.now())


def open_events(t: Tables, d: Dialect, limit: int) -> Select[Any]:
    """Count the unsettled outbox rows, at most `limit` in each of four parts."""
    o = t.outbox
    open_ = o.c.settled_at.is_(None)
    # Four parts, each with the condition and the order of one partial index.
    line = _events(t, MAIN_QUEUE, o.c.created_at).where(in_main_queue(o))
    # The later rows of the key of a retry are blocked.
    place = case((o.c.waiting, literal(RETRYING)), else_=literal(BLOCKED))
    holding = _events(t, place, o.c.created_at).where(open_, o.c.holds_key)
    # A delayed event is not late before it is due.
    since = case((o.c.due_at <= d.now(), o.c.due_at), else_=null())
    delayed = _events(t, DELAYED, since).where(
        open_, o.c.waiting, not_(o.c.holds_key), o.c.check_at.is_(None)
    )
    # A half message may never be sent: its outcome is unknown.
    half = _events(t, HALF, cast(null(), Timestamp())).where(o.c.check_at.is_not(None))
    parts = (
        line.order_by(o.c.shard, o.c.seq),
        holding.order_by(o.c.shard, o.c.key, o.c.seq),
        delayed.order_by(o.c.shard, o.c.due_at),
        half.order_by(o.c.event_type, o.c.check_at),
    )
    rows = union_all(*(part.limit(limit).subquery().select() for part in parts)).subquery()
    return _counted(rows, "topic", "tx_kind", "status", "place")


def due_events(t: Tables, d: Dialect, limit: int) -> Select[Any]:
    """Count the events that are due and not sent, at most `limit` in each of three parts.

    They include those that wait for another attempt, and those of their keys.
    """
    o = t.outbox
    row, open_ = select(o.c.seq), o.c.settled_at.is_(None)
    delayed = and_(open_, o.c.waiting, not_(o.c.holds_key), o.c.check_at.is_(None))
    parts = (
        row.where(in_main_queue(o)).order_by(o.c.seq),
        row.where(open_, o.c.holds_key).order_by(o.c.shard, o.c.key, o.c.seq),
        row.where(delayed, o.c.due_at <= d.now()).order_by(o.c.shard, o.c.due_at),
    )
    rows = union_all(*(part.limit(limit).subquery().select() for part in parts)).subquery()
    return select(func.count()).select_from(rows)


def oldest_events(t: Tables, d: Dialect, each: int) -> Select[Any]:
    """Find since when topics wait, from the first `each` rows of every shard.

    The rows are in its main queue, or hold their keys. A backlog of one shard hides no other.
    """
    o = t.outbox
    rows = _events(t, MAIN_QUEUE, o.c.created_at).add_columns(o.c.shard)
    line = rows.where(in_main_queue(o)).order_by(o.c.seq)
    holding = rows.where(o.c.settled_at.is_(None), o.c.holds_key).order_by(o.c.key, o.c.seq)
    shards = select(t.shard.c.shard).subquery("shards")
    parts = []
    for part in (line, holding):
        joined, heads = d.first_of_each(shards, part, "shard", each)
        parts.append(select(heads.c.topic, heads.c.tx_kind, heads.c.since).select_from(joined))
    found = union_all(*parts).subquery()
    return select(found.c.topic, found.c.tx_kind, func.min(found.c.since).label("since")).group_by(
        found.c.topic, found.c.tx_kind
    )


def oldest_half(t: Tables, limit: int) -> Select[Any]:
    """Find when the oldest half message was prepared, among `limit` of them."""
    o = t.outbox
    is_half = and_(o.c.check_at.is_not(None), o.c.status == OutboxStatus.HALF.value)
    rows = select(o.c.created_at).where(is_half).order_by(o.c.event_type, o.c.check_at)
    return _earliest(rows.limit(limit))


def oldest_unresolved(t: Tables, limit: int) -> Select[Any]:
    """Find when the oldest UNRESOLVED half message was prepared, among `limit`."""
    o = t.outbox
    is_unresolved = and_(needs_operator(o), o.c.status == OutboxStatus.UNRESOLVED.value)
    return _earliest(select(o.c.created_at).where(is_unresolved).limit(limit))


def open_arrivals(t: Tables, d: Dialect, limit: int) -> Select[Any]:
    """Count the unsettled inbox rows, at most the first `limit` of each group."""
    i = t.inbox
    waits = and_(i.c.attempts > 0, or_(i.c.lease_until.is_(None), i.c.lease_until <= d.now()))
    rows = (
        select(
            i.c.consumer_group,
            i.c.status,
            case((waits, literal(RETRYING)), else_=literal(MAIN_QUEUE)).label("place"),
            i.c.received_at.label("since"),
        )
        .where(i.c.settled_at.is_(None))
        .order_by(i.c.seq)
    )
    groups = _groups(i.c.consumer_group, i.c.settled_at.is_(None))
    joined, first = d.first_of_each(groups, rows, "consumer_group", limit)
    found = select(*first.c).select_from(joined).subquery()
    return _counted(found, "consumer_group", "status", "place")


def waiting_for_operator(t: Tables, table: Table, status: str) -> Select[Any]:
    """Count the rows of a status that waits for an operator: all of them, from their small index.

    A limit would hide the groups and topics with few rows.
    """
    rows = (
        select(*_dimensions(t, table), table.c.status)
        .where(needs_operator(table), table.c.status == status)
        .subquery()
    )
    return _tallied(rows)


def settled_by(t: Tables, table: Table, limit: int) -> Select[Any]:
    """Count settled rows, at most any `limit` of them."""
    rows = (
        select(*_dimensions(t, table), table.c.status)
        .where(table.c.settled_at.is_not(None))
        .limit(limit)
        .subquery()
    )
    return _tallied(rows)


def parked_by_group(t: Tables, d: Dialect, limit: int) -> Select[Any]:
    """Count the parked records of each group that wait, at most any `limit` of them."""
    p = t.parked
    groups = _groups(p.c.consumer_group)
    waiting = select(p.c.consumer_group).where(p.c.discarded_at.is_(None))
    joined, found = d.first_of_each(groups, waiting, "consumer_group", limit)
    rows = select(found.c.consumer_group).select_from(joined).subquery()
    return _tallied(rows)


def living_relays(t: Tables, d: Dialect) -> Select[Any]:
    """Select the living relays, with the number of shards that each owns."""
    r, s = t.relay, t.shard
    holds = and_(s.c.owner == r.c.relay, s.c.lease_until > d.now())
    return (
        select(r.c.relay, r.c.started_at, func.count(s.c.shard).label("shards"))
        .select_from(r.outerjoin(s, holds))
        .where(r.c.alive_until > d.now())
        .group_by(r.c.relay, r.c.started_at)
        .order_by(r.c.started_at, r.c.relay)
    )


def shards(t: Tables, d: Dialect) -> Select[Any]:
    """Count the shards, and the shards that a relay owns."""
    s = t.shard
    held = case((s.c.lease_until > d.now(), 1), else_=0)
    return select(func.count().label("all"), func.coalesce(func.sum(held), 0).label("held"))


def _events(t: Tables, place: str | ColumnElement[str], since: ColumnElement[Any]) -> Select[Any]:
    o = t.outbox
    named = literal(place) if isinstance(place, str) else place
    return select(o.c.topic, o.c.tx_kind, o.c.status, named.label("place"), since.label("since"))


def _groups(column: ColumnElement[str], *conditions: ColumnElement[bool]) -> Any:
    """Find the groups of a table by one index probe for each."""
    first = select(func.min(column)).where(*conditions)
    found = select(first.scalar_subquery().label("consumer_group")).cte("found", recursive=True)
    after = first.where(column > found.c.consumer_group).scalar_subquery()
    found = found.union_all(select(after).where(found.c.consumer_group.is_not(None)))
    return select(found.c.consumer_group).where(found.c.consumer_group.is_not(None)).subquery()


def _earliest(rows: Select[Any]) -> Select[Any]:
    found = rows.subquery()
    return select(func.min(found.c.created_at))


def _dimensions(t: Tables, table: Table) -> list[ColumnElement[Any]]:
    if table is t.outbox:
        return [table.c.topic, table.c.tx_kind]
    return [table.c.consumer_group]


def _counted(rows: Any, *dimensions: str) -> Select[Any]:
    columns = [rows.c[name] for name in dimensions]
    return select(
        *columns, func.count().label("rows"), func.min(rows.c.since).label("since")
    ).group_by(*columns)


def _tallied(rows: Any) -> Select[Any]:
    return select(*rows.c, func.count().label("rows")).group_by(*rows.c)
