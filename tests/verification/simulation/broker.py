"""The broker in memory of the testing kit, with late records, kills and false answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from shieldtx.ports.broker import (
    BATCH_BYTES,
    Backpressure,
    Delivery,
    DeliveryOutcome,
    ReceivedRecord,
    Record,
)
from shieldtx.testing import memory_broker, memory_cluster
from shieldtx.testing.memory_cluster import Cluster, Topic

Place = tuple[str, int]

_ACKNOWLEDGED = Delivery(outcome=DeliveryOutcome.ACKNOWLEDGED)
_UNSENT = Delivery(outcome=DeliveryOutcome.UNSENT, reason="the broker is unreachable")
_UNCONFIRMED = Delivery(outcome=DeliveryOutcome.UNCONFIRMED, reason="no answer")
_REFUSED = Delivery(outcome=DeliveryOutcome.REFUSED, reason="the topic refuses")
_REJECTED = Delivery(outcome=DeliveryOutcome.REJECTED, reason="too large")
_HELD = Delivery(
    outcome=DeliveryOutcome.DEFERRED, reason="an earlier record of its key was rejected"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """The trouble of one call of `publish`."""

    kind: str
    """outage, ambiguous, refused, rejected, twice, or killed."""
    at: int = 0
    """The first affected record."""
    stored: int = 0
    """For an ambiguous call: how many records from there on are stored in the log."""
    sent: int = 0
    """For an ambiguous call: how many were handed over; the others are UNSENT."""
    later: bool = False
    """For an ambiguous call: handed-over records that were not stored appear some time later."""


@dataclass(kw_only=True, slots=True, eq=False)
class Member(memory_cluster.Member):
    """A member of a consumer group: a process."""

    name: str
    polls: int = 1


class _Topic(Topic):
    """A topic in which a few records reach each partition."""

    __slots__ = ("_broker",)

    def __init__(self, broker: Broker, name: str, partitions: int) -> None:
        super().__init__(name=name, replication=1, logs=[[] for _ in range(partitions)])
        self._broker = broker

    def partition_for(self, record: Record) -> int:
        """Return the partition of a record; those without a key take turns."""
        if record.key is not None:
            return crc32(record.key) % len(self.logs)
        self._broker.without_key += 1
        return self._broker.without_key % len(self.logs)


class Broker(Cluster):
    """Topics of a few partitions in the testing kit's broker, with more failures than it plans."""

    def __init__(self, topics: Sequence[str], partitions: int, *, are_apart: bool = False) -> None:
        """Make topics with the given number of partitions.

        With `are_apart`, the members of a group share the partitions of the next topic starting
        with another member, so that two of them read an event and its rollback.
        """
        super().__init__()
        self.topics = {name: _Topic(self, name, partitions) for name in topics}
        self._are_apart = are_apart
        self.without_key = 0
        """The number of records without a key."""
        self.in_flight: list[Record] = []
        """Records of a client that has stopped waiting: they may still arrive."""
        self.refusals: Counter[str] = Counter()
        """How often a record of this event was refused or rejected, by event id."""

    @property
    def logs(self) -> dict[Place, list[ReceivedRecord]]:
        """The records of each partition."""
        topics = self.topics.values()
        return {(topic.name, n): log for topic in topics for n, log in enumerate(topic.logs)}

    def append(self, record: Record) -> None:
        """Store a record."""
        with self.changed:
            self.store(record)

    def land(self) -> None:
        """Let all records in transit arrive."""
        late, self.in_flight = self.in_flight, []
        for record in late:
            self.append(record)

    def leave(self, member: memory_cluster.Member) -> None:
        """Remove a member from its group."""
        with self.changed:
            super().leave(member)

    def reset(self, name: str, place: Place, offset: int) -> None:
        """Set a group's offset of a partition back; its members restart there."""
        committed = self.groups[name].committed
        committed[place] = min(offset, committed.get(place, 0))
        with self.changed:
            self.rebalance(name)

    def reader_of(
        self, place: Place, readers: Sequence[memory_cluster.Member]
    ) -> memory_cluster.Member:
        """Return which member of a group reads a partition."""
        topic, partition = place
        first = readers[0].reads.index(topic) if self._are_apart else 0
        return readers[(first + partition) % len(readers)]


class Sender(Protocol):
    """The process of a publisher, with its scheduled faults."""

    clock: Callable[[], float]

    def trouble(self, records: int) -> Trouble | None: ...

    def stopped_before_the_check(self) -> bool: ...

    def before(self, place: str) -> None: ...

    def after(self, place: str) -> None: ...

    def die(self) -> None: ...

    def may_fail_inside(self) -> None: ...

    def may_fail_at_a_call(self, place: str) -> None: ...


class MemoryPublisher:
    """Sends records (the port Publisher)."""

    def __init__(self, broker: Broker, sender: Sender) -> None:
        self._broker = broker
        self._sender = sender

    def publish(
        self,
        records: Sequence[Record],
        *,
        timeout: float,
        with_offsets: bool = False,  # noqa: ARG002  unused here
    ) -> Sequence[Delivery]:
        """Send `records` and return a delivery for each, as the port requires."""
        sender = self._sender
        deadline = sender.clock() + timeout
        sender.before("publish")
        sender.may_fail_at_a_call("publish")
        if sender.clock() > deadline and sender.stopped_before_the_check():
            return [_UNSENT] * len(records)
        deliveries = self._publish(records, sender.trouble(len(records)))
        for record, delivery in zip(records, deliveries, strict=True):
            if delivery.outcome in {DeliveryOutcome.REFUSED, DeliveryOutcome.REJECTED}:
                self._broker.refusals[_event_id(record)] += 1
        sender.after("publish")
        sender.may_fail_at_a_call("publish")
        return deliveries

    def pressure(self) -> Backpressure:
        """Report no pressure: this is the first call after a sent batch."""
        self._sender.may_fail_inside()
        return Backpressure()

    def close(self) -> None:
        """Close the connection to the broker."""
        self._sender.may_fail_at_a_call("close")

    def _publish(self, records: Sequence[Record], trouble: Trouble | None) -> list[Delivery]:
        broker = self._broker
        kind = "outage" if broker.is_down else trouble.kind if trouble is not None else ""
        if trouble is None or kind == "outage":
            if kind == "outage":
                return [_UNSENT] * len(records)
            return self._store(records)
        good, rest = records[: trouble.at], records[trouble.at :]
        if kind == "ambiguous":
            return self._store(good) + self._lose_answers(rest, trouble)
        if kind == "twice":
            self._store(records)
            return self._store(records)
        if kind == "killed":
            self._store(good)
            self._sender.die()
        topic = rest[0].topic
        if kind == "refused":
            # Known before any record of the topic is sent.
            return [
                _REFUSED if record.topic == topic else self._store([record])[0]
                for record in records
            ]
        return self._store(good) + self._reject_first(rest)

    def _store(self, records: Sequence[Record]) -> list[Delivery]:
        for record in records:
            self._broker.append(record)
        return [_ACKNOWLEDGED] * len(records)

    def _lose_answers(self, records: Sequence[Record], trouble: Trouble) -> list[Delivery]:
        stored = min(trouble.stored, len(records))
        sent = max(stored, min(trouble.sent, len(records)))
        self._store(records[:stored])
        if trouble.later:
            self._broker.in_flight += records[stored:sent]
        return [_UNCONFIRMED] * sent + [_UNSENT] * (len(records) - sent)

    def _reject_first(self, records: Sequence[Record]) -> list[Delivery]:
        key = records[0].key
        deliveries = [_REJECTED]
        for record in records[1:]:
            held = key is not None and (record.topic, record.key) == (records[0].topic, key)
            deliveries += [_HELD] if held else self._store([record])
        return deliveries


class MemorySubscriber(memory_broker.MemorySubscriber):
    """Reads for one member of a group, without waiting (the port Subscriber)."""

    def __init__(self, broker: Broker, member: Member, *, batch_bytes: int = BATCH_BYTES) -> None:
        super().__init__(broker, member)
        self._batch_bytes = batch_bytes

    def poll(
        self,
        *,
        timeout: float,  # noqa: ARG002  nothing waits here
        limit: int,
        limit_bytes: int = BATCH_BYTES,
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, starting with another partition each time."""
        limit_bytes = min(limit_bytes, self._batch_bytes)
        return super().poll(timeout=0, limit=limit, limit_bytes=limit_bytes)

    def pause(self, places: AbstractSet[Place]) -> None:
        """Do nothing: the worlds are far below every limit."""
        assert not places


def _event_id(record: Record | ReceivedRecord) -> str:
    return next(value for name, value in record.headers if name == "ce_id" and value).decode()


def ids_by_place(broker: Broker) -> dict[Place, list[str]]:
    """Return the event ids of every log, in order."""
    found: dict[Place, list[str]] = defaultdict(list)
    for place, log in broker.logs.items():
        found[place] = [_event_id(record) for record in log]
    return found
