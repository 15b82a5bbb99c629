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

from shieldtx.states import OutboxStatus
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects import StoreDialect
from shieldtx.store.tables import Tables, ended_in_error

IN_LINE = "in line"
RETRYING = "retrying"
DELAYED = "delayed"
HALF = "half"


def now(d: StoreDialect) -> Select[Any]:
    """Ask for the database's time."""
    return select(d.now())


def open_events(t: Tables, d: StoreDialect, limit: int) -> Select[Any]:
    """Count the outbox rows that are not settled, `limit` of each place at most."""
    o = t.outbox
    open_ = o.c.settled_at.is_(None)
    # Four parts, in the words and the order of one partial index each.
    in_line = _events(t, IN_LINE, o.c.created_at).where(open_, not_(o.c.waiting))
    retrying = _events(t, RETRYING, o.c.created_at).where(open_, o.c.waiting, o.c.holds_key)
    # Nobody waits for a delayed event before it is due.
    since = case((o.c.due_at <= d.now(), o.c.due_at), else_=null())
    delayed = _events(t, DELAYED, since).where(
        open_, o.c.waiting, not_(o.c.holds_key), o.c.check_at.is_(None)
    )
    # Of a half message nobody knows yet whether it is to be sent.
    half = _events(t, HALF, cast(null(), Timestamp())).where(o.c.check_at.is_not(None))
    parts = (
        in_line.order_by(o.c.shard, o.c.seq),
        retrying.order_by(o.c.shard, o.c.key),
        delayed.order_by(o.c.shard, o.c.due_at),
        half.order_by(o.c.event_type, o.c.check_at),
    )
    rows = union_all(*(part.limit(limit).subquery().select() for part in parts)).subquery()
    return _counted(rows, "topic", "tx_kind", "status", "place")


def oldest_events(t: Tables, d: StoreDialect, each: int) -> Select[Any]:
    """Find since when topics wait, from the first `each` rows in the line of every shard."""
    o = t.outbox
    rows = (
        _events(t, IN_LINE, o.c.created_at)
        .add_columns(o.c.shard)
        .where(o.c.settled_at.is_(None), not_(o.c.waiting))
        .order_by(o.c.seq)
    )
    shards = select(t.shard.c.shard).subquery("shards")
    joined, heads = d.first_of_each(shards, rows, "shard", each)
    return (
        select(heads.c.topic, heads.c.tx_kind, func.min(heads.c.since).label("since"))
        .select_from(joined)
        .group_by(heads.c.topic, heads.c.tx_kind)
    )


def oldest_half(t: Tables, limit: int) -> Select[Any]:
    """Find when the oldest half message was prepared, among `limit` of them."""
    o = t.outbox
    is_half = and_(o.c.check_at.is_not(None), o.c.status == OutboxStatus.HALF.value)
    rows = select(o.c.created_at).where(is_half).order_by(o.c.event_type, o.c.check_at)
    return _earliest(rows.limit(limit))


def oldest_unresolved(t: Tables, limit: int) -> Select[Any]:
    """Find when the oldest half message was prepared whose end nobody knows, among `limit`."""
    o = t.outbox
    is_unresolved = and_(ended_in_error(o), o.c.status == OutboxStatus.UNRESOLVED.value)
    return _earliest(select(o.c.created_at).where(is_unresolved).limit(limit))


def open_arrivals(t: Tables, d: StoreDialect, limit: int) -> Select[Any]:
    """Count the inbox rows that are not settled, the first `limit` of each group at most."""
    i = t.inbox
    waits = and_(i.c.attempts > 0, or_(i.c.lease_until.is_(None), i.c.lease_until <= d.now()))
    rows = (
        select(
            i.c.consumer_group,
            i.c.status,
            case((waits, literal(RETRYING)), else_=literal(IN_LINE)).label("place"),
            i.c.received_at.label("since"),
        )
        .where(i.c.settled_at.is_(None))
        .order_by(i.c.seq)
    )
    joined, first = d.first_of_each(_groups(t), rows, "consumer_group", limit)
    found = select(*first.c).select_from(joined).subquery()
    return _counted(found, "consumer_group", "status", "place")


def ended_in_error_by(t: Tables, table: Table, limit: int) -> Select[Any]:
    """Count the rows at rest with an error, the latest `limit` at most."""
    rows = (
        select(*_dimensions(t, table), table.c.status)
        .where(ended_in_error(table))
        .order_by(table.c.settled_at.desc())
        .limit(limit)
        .subquery()
    )
    return _tallied(rows)


def settled_by(t: Tables, table: Table, limit: int) -> Select[Any]:
    """Count settled rows, any `limit` of them at most."""
    rows = (
        select(*_dimensions(t, table), table.c.status)
        .where(table.c.settled_at.is_not(None))
        .limit(limit)
        .subquery()
    )
    return _tallied(rows)


def parked_by_group(t: Tables, limit: int) -> Select[Any]:
    """Count the parked records, any `limit` of them at most."""
    return _tallied(select(t.parked.c.consumer_group).limit(limit).subquery())


def living_relays(t: Tables, d: StoreDialect) -> Select[Any]:
    """Select the relays that live, with the number of shards that each holds."""
    r, s = t.relay, t.shard
    holds = and_(s.c.owner == r.c.relay, s.c.lease_until > d.now())
    return (
        select(r.c.relay, r.c.started_at, func.count(s.c.shard).label("shards"))
        .select_from(r.outerjoin(s, holds))
        .where(r.c.alive_until > d.now())
        .group_by(r.c.relay, r.c.started_at)
        .order_by(r.c.started_at, r.c.relay)
    )


def shards(t: Tables, d: StoreDialect) -> Select[Any]:
    """Count the shards, and those that some relay holds."""
    s = t.shard
    held = case((s.c.lease_until > d.now(), 1), else_=0)
    return select(func.count().label("all"), func.coalesce(func.sum(held), 0).label("held"))


def _events(t: Tables, place: str, since: ColumnElement[Any]) -> Select[Any]:
    o = t.outbox
    return select(
        o.c.topic, o.c.tx_kind, o.c.status, literal(place).label("place"), since.label("since")
    )


def _groups(t: Tables) -> Any:
    """Find the groups with open rows by one look into their index for each."""
    i = t.inbox
    first = select(func.min(i.c.consumer_group)).where(i.c.settled_at.is_(None))
    found = select(first.scalar_subquery().label("consumer_group")).cte("found", recursive=True)
    after = first.where(i.c.consumer_group > found.c.consumer_group).scalar_subquery()
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
