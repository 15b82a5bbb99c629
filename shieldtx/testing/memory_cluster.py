"""State of the broker in memory: logs, consumer groups, and planned failures.

The caller of each method must hold `changed`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

from shieldtx.brokers.partitioning import Spread, partition_of
from shieldtx.errors import BrokerUnavailable, TopicMissing
from shieldtx.ports.broker import (
    DeliveryOutcome,
    ReceivedRecord,
    Record,
    TopicPartition,
    TopicState,
)

UNREACHABLE: Final = "the broker in memory is down"
_STRETCH: Final = 65_536


@dataclass(kw_only=True, slots=True)
class Topic:
    """A topic and its records."""

    name: str
    replication: int
    logs: list[list[ReceivedRecord]]
    spread: Spread = field(default_factory=lambda: Spread(_STRETCH))

    @property
    def state(self) -> TopicState:
        """The state that an admin sees."""
        return TopicState(name=self.name, partitions=len(self.logs), replication=self.replication)

    def partition_for(self, record: Record) -> int:
        """Return the partition of a record."""
        if record.key is not None:
            return partition_of(record.key, len(self.logs))
        return self.spread.next_partition(len(record.value or b""), len(self.logs))

    def append(self, record: Record, partition: int) -> ReceivedRecord:
        """Store a record, and return it as subscribers receive it."""
        log = self.logs[partition]
        stored = ReceivedRecord(
            topic=self.name,
            partition=partition,
            offset=len(log),
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp=time.time_ns() // 1_000_000,
        )
        log.append(stored)
        return stored


@dataclass(kw_only=True, slots=True, eq=False)
class Member:
    """A member of a consumer group, with its next offset in each of its partitions."""

    group: str
    reads: Sequence[str]
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    paused: frozenset[TopicPartition] = frozenset()
    polls: int = 0


@dataclass(slots=True)
class Group:
    """A consumer group."""

    members: list[Member] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)


class Cluster:
    """State that all publishers, subscribers and admins of one broker in memory share."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.history: list[ReceivedRecord] = []
        """The records of all topics, in the order in which they were stored."""
        self.planned: deque[tuple[DeliveryOutcome, bool]] = deque()
        self.duplicates = 0
        self.is_down = False
        self.throttle: tuple[int, float] | None = None
        """Record count and seconds: a call with more records returns a pause of that duration."""
        # Notified when a waiting poll may find something new.
        self.changed = Condition()

    def require(self) -> None:
        """Raise BrokerUnavailable while the broker is down."""
        if self.is_down:
            raise BrokerUnavailable(UNREACHABLE)

    def store(self, record: Record) -> tuple[int, int]:
        """Append a record to its partition, twice if planned; return its partition and offset."""
        topic = self.topics[record.topic]
        partition = topic.partition_for(record)
        offset = len(topic.logs[partition])
        self.history.append(topic.append(record, partition))
        if self.duplicates:
            self.duplicates -= 1
            self.history.append(topic.append(record, partition))
        self.changed.notify_all()
        return partition, offset

    def create(self, name: str, *, partitions: int, replication: int) -> None:
        """Create a topic."""
        logs: list[list[ReceivedRecord]] = [[] for _ in range(partitions)]
        self.topics[name] = Topic(name=name, replication=replication, logs=logs)

    def join(self, member: Member) -> None:
        """Add a member to its group, unless it is there; raises TopicMissing."""
        group = self.groups.setdefault(member.group, Group())
        if member in group.members:
            return
        missing = [topic for topic in member.reads if topic not in self.topics]
        if missing:
            raise TopicMissing(f"no topic {', '.join(missing)} in the broker in memory")
        group.members.append(member)
        self.rebalance(member.group)

    def is_member(self, member: Member) -> bool:
        """Whether a member is in its group."""
        return member.group in self.groups and member in self.groups[member.group].members

    def leave(self, member: Member) -> None:
        """Remove a member from its group."""
        group = self.groups.get(member.group)
        if group is not None and member in group.members:
            group.members.remove(member)
            member.positions.clear()
            self.rebalance(member.group)

    def rebalance(self, name: str) -> None:
        """Distribute the partitions; every member continues at the committed offsets."""
        group = self.groups[name]
        for member in group.members:
            member.positions.clear()
        for topic in sorted(self.topics.values(), key=lambda topic: topic.name):
            readers = [member for member in group.members if topic.name in member.reads]
            for partition in range(len(topic.logs) if readers else 0):
                place = (topic.name, partition)
                reader = self.reader_of(place, readers)
                reader.positions[place] = group.committed.get(place, 0)
        self.changed.notify_all()

    def reader_of(self, place: TopicPartition, readers: Sequence[Member]) -> Member:
        """Return which member of a group reads a partition."""
        return readers[place[1] % len(readers)]

    def fetch(self, member: Member, limit: int, limit_bytes: int) -> list[ReceivedRecord]:
        """Return a member's next records, and advance its offsets past them.

        Each call starts with another partition, so that a full partition does not starve the
        others.
        """
        places = sorted(member.positions.keys() - member.paused)
        if not places:
            return []
        first = member.polls % len(places)
        member.polls += 1
        fetched: list[ReceivedRecord] = []
        for place in places[first:] + places[:first]:
            start = member.positions[place]
            for record in self.topics[place[0]].logs[place[1]][start : start + limit]:
                if len(fetched) == limit or limit_bytes <= 0:
                    return fetched
                member.positions[place] += 1
                fetched.append(record)
                limit_bytes -= record.size
        return fetched

    def has_records(self, member: Member) -> bool:
        """Whether a fetch would return something."""
        return any(
            member.positions[topic, partition] < len(self.topics[topic].logs[partition])
            for topic, partition in member.positions.keys() - member.paused
        )
