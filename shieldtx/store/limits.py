"""What is at its limit now: topics of the write side, partitions of the consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine

from shieldtx.domain.states import TxKind
from shieldtx.ports.inbox import Handled
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import backlog
from shieldtx.store.statements import inbox as sql
from shieldtx.store.tables import Tables


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicAtLimit:
    """A logical topic so many of whose events wait to be sent that further ones are objected to."""

    topic: str
    limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionAtLimit:
    """A partition so many of whose events are unfinished in the inbox that it is not polled."""

    group: str
    topic: str
    """The logical one."""
    kind: TxKind
    partition: int
    pending: int


def one_schema_two_sources(count: int, other: str, own: str) -> str:
    """Say what happens to events of another source in this outbox, and what to do."""
    return (
        f"{count:,} events of source {other} wait in shards that relays of source {own} own, and "
        f"are not sent from there; events of source {own} wait in the same way in shards that "
        f"relays of source {other} own; give each service a schema of its own"
    )


class SqlLimits:
    """Counts as the write side and the consumers do, which decide for themselves."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._backlog = backlog.events(tables, dialect_of(engine.dialect))
        self._pending = sql.pending(tables, dialect_of(engine.dialect))

    def topics(self, limits: Mapping[str, int]) -> list[TopicAtLimit]:
        """Return those of these topics that are at their limit, by name."""
        with self._engine.connect() as connection:
            return [
                TopicAtLimit(topic=topic, limit=limit)
                for topic, limit in sorted(limits.items())
                if connection.scalar(self._backlog, backlog.parameters(topic, limit)) == limit
            ]

    def other_sources(self, source: str) -> dict[str, int]:
        """Count the events of other sources that wait in this outbox; no relay of `source` does."""
        with self._engine.connect() as connection:
            found = connection.execute(backlog.other_sources(self._tables, source)).all()
        return {row.source: row.rows for row in found}

    def partitions(self, groups: Mapping[str, Handled], limit: int) -> list[PartitionAtLimit]:
        """Return the partitions with at least `limit` unfinished events in one of these groups.

        Events count of the types that a group has handlers for.
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
                        self._pending, sql.group_parameters(group, handled)
                    )
                    if pending >= limit
                ),
                key=lambda at: (at.group, at.topic, at.kind, at.partition),
            )
