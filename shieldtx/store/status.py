"""How a service stands: what waits and since when, what needs a person, which relays live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import status as sql
from shieldtx.store.status_counts import Backlog, Count, Precision, Tally
from shieldtx.store.tables import Tables

__all__ = [
    "Backlog",
    "Count",
    "GroupBacklog",
    "LivingRelay",
    "Overview",
    "Precision",
    "SqlOverview",
    "TopicBacklog",
]

DEFAULT_LIMIT = 10_000
"""Up to how many rows of a kind are counted one by one."""

_HEADS = 100
"""How many rows of each shard are looked at for the oldest, where not all can be."""

_WAITING: Mapping[str, tuple[str, ...]] = {
    "shield_outbox": (OutboxStatus.FAILED, OutboxStatus.UNRESOLVED),
    "shield_inbox": (InboxStatus.DEAD,),
}
"""The states that wait for an operator: an index of their own finds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicBacklog:
    """The events of one logical topic and kind that this service writes."""

    topic: str
    kind: TxKind
    backlog: Backlog


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupBacklog:
    """The events that a consumer group has received."""

    group: str
    backlog: Backlog
    parked: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class LivingRelay:
    """A relay process that renews its leases."""

    name: str
    started_at: datetime
    shards: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """All of it, at one time by the database's clock."""

    at: datetime
    outbox: Backlog
    oldest_half: timedelta | None
    """How long ago the oldest half message was prepared whose end is not known yet; None: none."""
    oldest_unresolved: timedelta | None
    """Likewise of those whose end nobody could tell."""
    topics: Sequence[TopicBacklog]
    inbox: Backlog
    groups: Sequence[GroupBacklog]
    relays: Sequence[LivingRelay]
    shards: int
    shards_held: int


class SqlOverview:
    """Reads the overview: it counts up to `limit` rows of a kind, and says where there are more."""

    def __init__(self, engine: Engine, tables: Tables, *, limit: int = DEFAULT_LIMIT) -> None:
        self._engine = engine
        self._tables = tables
        self._limit = limit
        self._dialect = dialect_of(engine.dialect)

    def read(self) -> Overview:
        """Look at all tables."""
        t, d = self._tables, self._dialect
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level=d.snapshot_isolation)
            now: datetime = connection.scalars(sql.now(d)).one()
            outbox, topics = self._outbox(connection, now)
            inbox, groups = self._inbox(connection, now)
            half, unresolved = (
                connection.scalar(oldest(t, self._limit))
                for oldest in (sql.oldest_half, sql.oldest_unresolved)
            )
            relays = connection.execute(sql.living_relays(t, d)).all()
            shards = connection.execute(sql.shards(t, d)).one()
        return Overview(
            at=now,
            outbox=outbox,
            oldest_half=_age(half, now),
            oldest_unresolved=_age(unresolved, now),
            topics=topics,
            inbox=inbox,
            groups=groups,
            relays=[
                LivingRelay(name=r.relay, started_at=r.started_at, shards=r.shards) for r in relays
            ],
            shards=shards[0],
            shards_held=shards[1],
        )

    def _outbox(
        self, connection: Connection, now: datetime
    ) -> tuple[Backlog, Sequence[TopicBacklog]]:
        t, d = self._tables, self._dialect
        tally = Tally(OUTBOX, limit=self._limit, now=now)
        open_ = connection.execute(sql.open_events(t, d, self._limit)).all()
        # Blocked rows and retries were counted together, up to one limit.
        for places in ([sql.IN_LINE], [sql.BLOCKED, sql.RETRYING], [sql.DELAYED], [sql.HALF]):
            tally.add_open([row for row in open_ if row.place in places])
        if tally.uncertain:
            for row in connection.execute(sql.oldest_events(t, d, _HEADS)):
                tally.note_oldest(row)
        self._add_settled(connection, t.outbox, tally)
        topics = [
            TopicBacklog(topic=topic, kind=TxKind(kind), backlog=tally.backlog((topic, kind)))
            for topic, kind in sorted(tally.parts)
        ]
        return tally.total(self._estimates(connection, t.outbox, tally)), topics

    def _inbox(
        self, connection: Connection, now: datetime
    ) -> tuple[Backlog, Sequence[GroupBacklog]]:
        t, d = self._tables, self._dialect
        tally = Tally(INBOX, limit=self._limit, now=now)
        by_group = defaultdict(list)
        for row in connection.execute(sql.open_arrivals(t, d, self._limit)):
            by_group[row.consumer_group].append(row)
        for rows in by_group.values():
            tally.add_open(rows)
        self._add_settled(connection, t.inbox, tally)
        parked = _cut(connection, sql.parked_by_group(t, d, self._limit), self._limit)
        groups = [
            GroupBacklog(
                group=group, backlog=tally.backlog((group,)), parked=parked.get(group, Count())
            )
            for group in sorted({*(part[0] for part in tally.parts), *parked})
        ]
        return tally.total(self._estimates(connection, t.inbox, tally)), groups

    def _add_settled(self, connection: Connection, table: Table, tally: Tally) -> None:
        t, limit = self._tables, self._limit
        waiting = _WAITING[table.name]
        for status in waiting:
            rows = connection.execute(sql.waiting_for_operator(t, table, status, limit)).all()
            tally.add_settled(rows, {status})
        settled = connection.execute(sql.settled_by(t, table, limit)).all()
        tally.add_settled(settled, {*OUTBOX.settled, *INBOX.settled}.difference(waiting))

    def _estimates(self, connection: Connection, table: Table, tally: Tally) -> Mapping[str, int]:
        """Ask the database's statistics, where counting was cut short."""
        estimate = self._dialect.estimate_by(table.c.status)
        if not tally.uncertain or estimate is None:
            return {}
        return {row.value: row.rows for row in connection.execute(estimate)}


def _age(since: datetime | None, now: datetime) -> timedelta | None:
    # The clock was asked just before the tables.
    return None if since is None else max(now - since, timedelta(0))


def _cut(connection: Connection, statement: Select[Any], limit: int) -> Mapping[str, Count]:
    """Return counts by the first column of the rows, each of which was cut at the limit."""
    return {
        row[0]: Count(
            rows=row.rows, precision=Precision.AT_LEAST if row.rows >= limit else Precision.EXACT
        )
        for row in connection.execute(statement)
    }
