"""The statement that counts the events of a topic that wait to be sent."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Integer, Select, Text, bindparam, func, not_, select, union, union_all

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements.built_once import built_once
from shieldtx.store.tables import Tables

SCAN_FACTOR: Final = 10
MOST_SCANNED: Final = 100_000
"""The most rows read for a limit below this number: some 50 ms of server time."""

_TOPIC = bindparam("of_topic", type_=Text())
_MOST = bindparam("at_most", type_=Integer())
_SCANNED = bindparam("scanned", type_=Integer())


@built_once
def events(t: Tables, d: Dialect) -> Select[Any]:
    """Count a topic's unsettled COMMIT events that are due, up to a limit.

    No index contains topics, so the statement reads a bounded number of unsettled rows of all
    topics. Each of the three parts has the condition and the order of one partial index. The rows
    that hold their keys include the first of every shard: a backlog in one shard hides no other.
    Half messages are not to be sent yet. Run with `parameters`.
    """
    o = t.outbox
    row = select(o.c.topic, o.c.tx_kind, o.c.status).where(o.c.settled_at.is_(None))
    in_main_queue = row.where(not_(o.c.waiting), not_(o.c.holds_key)).order_by(o.c.seq.desc())
    delayed = (
        row.add_columns(o.c.shard)
        .where(o.c.waiting, not_(o.c.holds_key), o.c.due_at <= d.now())
        .order_by(o.c.due_at)
    )
    shards = select(t.shard.c.shard).subquery("shards")
    joined, due = d.first_of_each(shards, delayed, "shard", _SCANNED)
    for_now = select(due.c.topic, due.c.tx_kind, due.c.status).select_from(joined)
    parts = [part.limit(_SCANNED).subquery().select() for part in (in_main_queue, for_now)]
    rows = union_all(*parts, _holding(t, d)).subquery()
    found = (
        select(rows.c.topic)
        .where(rows.c.topic == _TOPIC, rows.c.tx_kind == TxKind.COMMIT.value)
        .where(rows.c.status != OutboxStatus.HALF.value)
        .limit(_MOST)
        .subquery()
    )
    return select(func.count()).select_from(found)


def _holding(t: Tables, d: Dialect) -> Select[Any]:
    """Select the first rows that hold their keys, of all and of every shard, each row once."""
    o = t.outbox
    columns = (o.c.event_id, o.c.topic, o.c.tx_kind, o.c.status)
    rows = select(*columns).where(o.c.settled_at.is_(None), o.c.holds_key)
    first = rows.order_by(o.c.shard, o.c.key, o.c.seq).limit(_SCANNED).subquery().select()
    shards = select(t.shard.c.shard).subquery("shards")
    each = select(_SCANNED // func.count() + 1).select_from(t.shard).scalar_subquery()
    of_shard = rows.add_columns(o.c.shard).order_by(o.c.key, o.c.seq)
    joined, heads = d.first_of_each(shards, of_shard, "shard", each)
    heads_of_all = select(*(heads.c[column.name] for column in columns)).select_from(joined)
    found = union(first, heads_of_all).subquery()
    return select(found.c.topic, found.c.tx_kind, found.c.status)


def other_sources(t: Tables, source: str) -> Select[Any]:
    """Count the unsettled rows of other sources by source, among the first rows of each kind.

    The kinds are the main queue, the rows that hold their keys, and the rows that wait for a time.
    """
    o = t.outbox
    row = select(o.c.source).where(o.c.settled_at.is_(None))
    parts = (
        row.where(not_(o.c.waiting), not_(o.c.holds_key)).order_by(o.c.seq),
        row.where(o.c.holds_key).order_by(o.c.shard, o.c.key, o.c.seq),
        row.where(o.c.waiting, not_(o.c.holds_key)).order_by(o.c.shard, o.c.due_at),
    )
    found = union_all(*(part.limit(MOST_SCANNED).subquery().select() for part in parts)).subquery()
    others = select(found.c.source, func.count().label("rows")).where(found.c.source != source)
    return others.group_by(found.c.source).order_by(found.c.source)


def parameters(topic: str, upto: int) -> dict[str, Any]:
    """Return the parameters of `events`."""
    scanned = max(upto, min(SCAN_FACTOR * upto, MOST_SCANNED))
    return {_TOPIC.key: topic, _MOST.key: upto, _SCANNED.key: scanned}
