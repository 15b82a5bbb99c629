"""A broker in memory: partitions, groups with members, committed offsets, and false answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from shieldtx.errors import BrokerUnavailable
from shieldtx.ports.broker import (
    BATCH_BYTES,
    Backpressure,
    Delivery,
    DeliveryOutcome,
    ReceivedRecord,
    Record,
)

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


@dataclass(slots=True, eq=False)
class Member:
    """A member of a consumer group."""

    group: str
    name: str
    positions: dict[Place, int] = field(default_factory=dict)
    polls: int = 0


@dataclass(slots=True)
class Group:
    """A consumer group."""

    topics: Sequence[str]
    members: list[Member] = field(default_factory=list)
    committed: dict[Place, int] = field(default_factory=dict)


class Broker:
    """Topics of a few partitions, and the groups that read them."""

    def __init__(self, topics: Sequence[str], partitions: int, *, are_apart: bool = False) -> None:
        """Make topics with the given number of partitions.

        With `are_apart`, the members of a group share the partitions of the next topic starting
        with another member, so that two of them read an event and its rollback.
        """
        self.logs: dict[Place, list[ReceivedRecord]] = {
            (topic, n): [] for topic in topics for n in range(partitions)
        }
        self.partitions = partitions
        self._are_apart = are_apart
        self.groups: dict[str, Group] = {}
        self.is_down = False
        self.in_flight: list[Record] = []
        """Records of a client that has stopped waiting: they may still arrive."""
        self.refusals: Counter[str] = Counter()
        """How often a record of this event was refused or rejected, by event id."""
        self._spread = 0

    def append(self, record: Record) -> None:
        if record.key is not None:
            partition = crc32(record.key) % self.partitions
        else:
            self._spread += 1
            partition = self._spread % self.partitions
        log = self.logs[record.topic, partition]
        log.append(
            ReceivedRecord(
                topic=record.topic,
                partition=partition,
                offset=len(log),
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        )

    def land(self) -> None:
        """Let all records in transit arrive."""
        late, self.in_flight = self.in_flight, []
        for record in late:
            self.append(record)

    def join(self, member: Member) -> None:
        group = self.groups[member.group]
        if member not in group.members:
            group.members.append(member)
            self._rebalance(group)

    def leave(self, member: Member) -> None:
        group = self.groups[member.group]
        if member in group.members:
            group.members.remove(member)
            member.positions.clear()
            self._rebalance(group)

    def reset(self, name: str, place: Place, offset: int) -> None:
        """Set a group's offset of a partition back; its members restart there."""
        group = self.groups[name]
        group.committed[place] = min(offset, group.committed.get(place, 0))
        self._rebalance(group)

    def _rebalance(self, group: Group) -> None:
        for member in group.members:
            member.positions.clear()
        if not group.members:
            return
        for place in self.logs:
            if place[0] in group.topics:
                first = group.topics.index(place[0]) if self._are_apart else 0
                reader = group.members[(first + place[1]) % len(group.members)]
                reader.positions[place] = group.committed.get(place, 0)


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


class MemorySubscriber:
    """Reads for one member of a group (the port Subscriber)."""

    def __init__(self, broker: Broker, member: Member, *, batch_bytes: int = BATCH_BYTES) -> None:
        self.member = member
        self._batch_bytes = batch_bytes
        self._broker = broker

    def poll(
        self,
        *,
        timeout: float,  # noqa: ARG002  nothing waits here
        limit: int,
        limit_bytes: int = BATCH_BYTES,
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, starting with another partition each time."""
        broker, member = self._broker, self.member
        self._require()
        broker.join(member)
        places = sorted(member.positions)
        if not places:
            return []
        member.polls += 1
        first = member.polls % len(places)
        limit_bytes = min(limit_bytes, self._batch_bytes)
        fetched: list[ReceivedRecord] = []
        for place in places[first:] + places[:first]:
            start = member.positions[place]
            for record in broker.logs[place][start : start + limit - len(fetched)]:
                if limit_bytes <= 0:
                    break
                member.positions[place] += 1
                fetched.append(record)
                limit_bytes -= record.size
        return fetched

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Commit these records, where their partitions are this member's."""
        self._require()
        committed = self._broker.groups[self.member.group].committed
        for place, record in self._mine(records):
            committed[place] = max(record.offset + 1, committed.get(place, 0))

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Deliver these records again; a call moves a position forward too, as a seek does."""
        first: dict[Place, int] = {}
        for place, record in self._mine(records):
            first[place] = min(record.offset, first.get(place, record.offset))
        self.member.positions.update(first)

    def pause(self, places: AbstractSet[Place]) -> None:
        """Do nothing: the worlds are far below every limit."""
        assert not places

    def has_caught_up(self) -> bool:
        """Return whether this member has polled all records."""
        self._require()
        logs, positions = self._broker.logs, self.member.positions
        joined = self.member in self._broker.groups[self.member.group].members
        return joined and all(offset >= len(logs[place]) for place, offset in positions.items())

    def close(self) -> None:
        """Leave the group."""
        self._broker.leave(self.member)

    def _require(self) -> None:
        if self._broker.is_down:
            raise BrokerUnavailable("the broker in memory is down")

    def _mine(self, records: Sequence[ReceivedRecord]) -> list[tuple[Place, ReceivedRecord]]:
        placed = [((record.topic, record.partition), record) for record in records]
        return [(place, record) for place, record in placed if place in self.member.positions]


def _event_id(record: Record | ReceivedRecord) -> str:
    return next(value for name, value in record.headers if name == "ce_id" and value).decode()


def ids_by_place(broker: Broker) -> dict[Place, list[str]]:
    """Return the event ids of every log, in order."""
    found: dict[Place, list[str]] = defaultdict(list)
    for place, log in broker.logs.items():
        found[place] = [_event_id(record) for record in log]
    return found
