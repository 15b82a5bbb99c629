"""The status of a service: backlog, rows that need an operator, running relays, reached limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Select, Table

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.inbox import Handled
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import backlog, inbox_unfinished
from shieldtx.store.statements import status as sql
from shieldtx.store.status_counts import Backlog, Count, Precision, StatusCounter
from shieldtx.store.tables import Tables

__all__ = [
    "Backlog",
    "Count",
    "GroupBacklog",
    "RunningRelay",
    "ServiceStatus",
    "Precision",
    "SqlStatus",
    "TopicBacklog",
    "Unsent",
]

DEFAULT_LIMIT = 10_000
"""The most rows of a kind that are counted one by one."""

_HEADS = 100
"""The rows of each shard that are read for the oldest event, if not all rows are counted."""

_WAITING: Mapping[str, tuple[str, ...]] = {
    "shield_outbox": (OutboxStatus.FAILED, OutboxStatus.UNRESOLVED),
    "shield_inbox": (InboxStatus.DEAD,),
}
"""The states that wait for an operator, which have their own index."""


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
class RunningRelay:
    """A relay process that renews its leases."""

    name: str
    started_at: datetime
    shards: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsent:
    """The due events that are not sent, and the shards that relays own."""

    events: Count
    shards: int
    shards_held: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceStatus:
    """The whole status, at one moment of the database's clock."""

    at: datetime
    outbox: Backlog
    oldest_half: timedelta | None
    """The time since the oldest HALF message was prepared; None if there is none."""
    oldest_unresolved: timedelta | None
    """The time since the oldest UNRESOLVED message was prepared; None if there is none."""
    topics: Sequence[TopicBacklog]
    inbox: Backlog
    groups: Sequence[GroupBacklog]
    relays: Sequence[RunningRelay]
    shards: int
    shards_held: int


class SqlStatus:
    """Reads the status: counts up to `limit` rows of a kind, and marks counts that stopped."""

    def __init__(self, engine: Engine, tables: Tables, *, limit: int = DEFAULT_LIMIT) -> None:
        self._engine = engine
        self._tables = tables
        self._limit = limit
        self._dialect = dialect_of(engine.dialect)

    def read(self) -> ServiceStatus:
        """Return the status of all tables."""
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
        return ServiceStatus(
            at=now,
            outbox=outbox,
            oldest_half=_age(half, now),
            oldest_unresolved=_age(unresolved, now),
            topics=topics,
            inbox=inbox,
            groups=groups,
            relays=[
                RunningRelay(name=r.relay, started_at=r.started_at, shards=r.shards) for r in relays
            ],
            shards=shards[0],
            shards_held=shards[1],
        )

    def unsent(self) -> Unsent:
        """Return what is still to be sent, and who may send it."""
        t, d = self._tables, self._dialect
        with self._engine.connect() as connection:
            due = connection.scalars(sql.due_events(t, d, self._limit)).one()
            shards = connection.execute(sql.shards(t, d)).one()
        precision = Precision.AT_LEAST if due >= self._limit else Precision.EXACT
        return Unsent(
            events=Count(rows=due, precision=precision), shards=shards[0], shards_held=shards[1]
        )

    def _outbox(
        self, connection: Connection, now: datetime
    ) -> tuple[Backlog, Sequence[TopicBacklog]]:
        t, d = self._tables, self._dialect
        counter = StatusCounter(OUTBOX, limit=self._limit, now=now)
        open_ = connection.execute(sql.open_events(t, d, self._limit)).all()
        # Blocked rows and retries were counted together, up to one limit.
        for places in ([sql.MAIN_QUEUE], [sql.BLOCKED, sql.RETRYING], [sql.DELAYED], [sql.HALF]):
            counter.add_open([row for row in open_ if row.place in places])
        if counter.uncertain:
            for row in connection.execute(sql.oldest_events(t, d, _HEADS)):
                counter.note_oldest(row)
        self._add_settled(connection, t.outbox, counter)
        topics = [
            TopicBacklog(topic=topic, kind=TxKind(kind), backlog=counter.backlog((topic, kind)))
            for topic, kind in sorted(counter.parts)
        ]
        return counter.total(self._estimates(connection, t.outbox, counter)), topics

    def _inbox(
        self, connection: Connection, now: datetime
    ) -> tuple[Backlog, Sequence[GroupBacklog]]:
        t, d = self._tables, self._dialect
        counter = StatusCounter(INBOX, limit=self._limit, now=now)
        by_group = defaultdict(list)
        for row in connection.execute(sql.open_arrivals(t, d, self._limit)):
            by_group[row.consumer_group].append(row)
        for rows in by_group.values():
            counter.add_open(rows)
        self._add_settled(connection, t.inbox, counter)
        parked = _cut(connection, sql.parked_by_group(t, d, self._limit), self._limit)
        groups = [
            GroupBacklog(
                group=group, backlog=counter.backlog((group,)), parked=parked.get(group, Count())
            )
            for group in sorted({*(part[0] for part in counter.parts), *parked})
        ]
        return counter.total(self._estimates(connection, t.inbox, counter)), groups

    def _add_settled(self, connection: Connection, table: Table, counter: StatusCounter) -> None:
        t, limit = self._tables, self._limit
        waiting = _WAITING[table.name]
        for status in waiting:
            rows = connection.execute(sql.waiting_for_operator(t, table, status)).all()
            counter.add_settled(rows, {status}, is_cut=False)
        settled = connection.execute(sql.settled_by(t, table, limit)).all()
        counter.add_settled(settled, {*OUTBOX.settled, *INBOX.settled}.difference(waiting))

    def _estimates(
        self, connection: Connection, table: Table, counter: StatusCounter
    ) -> Mapping[str, int]:
        """Return estimates from the database's statistics, if a count stopped at the limit."""
        estimate = self._dialect.estimated_counts(table.c.status)
        if not counter.uncertain or estimate is None:
            return {}
        return {row.value: row.rows for row in connection.execute(estimate)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicAtLimit:
    """A logical topic whose backlog has reached the limit for further events."""

    topic: str
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionAtLimit:
    """A partition with so much unfinished inbox work that a consumer does not poll it."""

    group: str
    topic: str
    """The logical topic."""
    kind: TxKind
    partition: int
    pending: int


def warning_of_shared_schema(count: int, other: str, own: str) -> str:
    """Return the consequence of events of another source in this outbox, and the remedy."""
    return (
        f"{count:,} events of source {other} wait in shards that relays of source {own} own, and "
        f"are not sent from there; events of source {own} wait in the same way in shards that "
        f"relays of source {other} own; give each service a schema of its own"
    )


class SqlLimitStatus:
    """Counts like the write side and the consumers, which apply their limits by themselves."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._backlog = backlog.events(tables, dialect_of(engine.dialect))
        self._pending = inbox_unfinished.pending(tables, dialect_of(engine.dialect))

    def topics(self, limits: Mapping[str, int]) -> list[TopicAtLimit]:
        """Return the given topics that are at their limit, by name."""
        with self._engine.connect() as connection:
            return [
                TopicAtLimit(topic=topic, limit=limit)
                for topic, limit in sorted(limits.items())
                if connection.scalar(self._backlog, backlog.parameters(topic, limit)) == limit
            ]

    def other_sources(self, source: str) -> dict[str, int]:
        """Count the events of other sources in this outbox, which no relay of `source` sends."""
        with self._engine.connect() as connection:
            found = connection.execute(backlog.other_sources(self._tables, source)).all()
        return {row.source: row.rows for row in found}

    def partitions(self, groups: Mapping[str, Handled], limit: int) -> list[PartitionAtLimit]:
        """Return the partitions with at least `limit` unfinished events in one of these groups.

        Only events of types with a handler in the group count.
        """
        with self._engine.connect() as connection:
            return sorted(
                (
                    PartitionAtLimit(
                        group=group,
                        topic=topic,
                        kind=TxKind(kind),
                        partition=partition,
                        pending=pending,
                    )
                    for group, handled in groups.items()
                    for topic, kind, partition, pending in connection.execute(
                        self._pending, inbox_unfinished.group_parameters(group, handled)
                    )
                    if pending >= limit
                ),
                key=lambda at: (at.group, at.topic, at.kind, at.partition),
            )


def _age(since: datetime | None, now: datetime) -> timedelta | None:
    # The clock was read just before the tables.
    return None if since is None else max(now - since, timedelta(0))


def _cut(connection: Connection, statement: Select[Any], limit: int) -> Mapping[str, Count]:
    """Return counts by the first column of the rows; each count stopped at the limit."""
    return {
        row[0]: Count(
            rows=row.rows, precision=Precision.AT_LEAST if row.rows >= limit else Precision.EXACT
        )
        for row in connection.execute(statement)
    }
