"""A broker in memory, for tests: it behaves as Kafka does, and fails on request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from shieldtx.errors import BrokerError
from shieldtx.ports.broker import (
    BATCH_BYTES,
    Backpressure,
    Delivery,
    DeliveryOutcome,
    ReceivedRecord,
    Record,
    TopicCleanup,
    TopicPartition,
    TopicState,
)
from shieldtx.testing.memory_cluster import UNREACHABLE, Cluster, Member


class MemoryBroker:
    """Topics, partitions and consumer groups in memory; thread-safe.

    Its behaviour depends on the calls alone, so that a test runs the same way each time. A test
    plans failures in advance: `go_down`, `fail_next`, `throttle`, `duplicate_next`, `evict`,
    `forget_offsets`.
    """

    def __init__(self, *, max_record_bytes: int = 1_048_588) -> None:
        self._cluster = Cluster()
        self._max_record_bytes = max_record_bytes

    def publisher(self) -> MemoryPublisher:
        """Return a new publisher."""
        return MemoryPublisher(self._cluster, max_record_bytes=self._max_record_bytes)

    def subscriber(self, group: str, topics: Sequence[str]) -> MemorySubscriber:
        """Return a new member of a consumer group, which joins with its first poll."""
        return MemorySubscriber(self._cluster, Member(group=group, reads=tuple(topics)))

    def topics(self) -> MemoryTopics:
        """Return an admin of the topics."""
        return MemoryTopics(self._cluster)

    # --- planned failures ----------------------------------------------------------------------

    def go_down(self) -> None:
        """Make the broker unreachable for all clients until `come_back`."""
        with self._cluster.changed:
            self._cluster.is_down = True
            self._cluster.changed.notify_all()

    def come_back(self) -> None:
        """Make the broker reachable again, with all its records."""
        with self._cluster.changed:
            self._cluster.is_down = False

    def fail_next(self, *outcomes: DeliveryOutcome, stored: bool = False) -> None:
        """Plan the outcomes of the next published records, one outcome for each.

        REJECTED defers the later records of its key in that call, REFUSED also refuses those of its
        topic; after UNSENT and UNCONFIRMED the rest of the call is not sent. An UNCONFIRMED record
        is in the log if `stored`.
        """
        with self._cluster.changed:
            self._cluster.planned.extend((outcome, stored) for outcome in outcomes)

    def throttle(self, *, above: int, pause: float) -> None:
        """Request a pause of `pause` seconds after each call of more than `above` records."""
        with self._cluster.changed:
            self._cluster.throttle = (above, pause)

    def lift_throttle(self) -> None:
        """Request no more pauses."""
        with self._cluster.changed:
            self._cluster.throttle = None

    def duplicate_next(self, records: int = 1) -> None:
        """Store the next records twice, as happens when an acknowledgement is lost."""
        with self._cluster.changed:
            self._cluster.duplicates += records

    def evict(self, subscriber: MemorySubscriber) -> None:
        """Move the partitions of a member to the others, as if it had died; it may rejoin."""
        with self._cluster.changed:
            self._cluster.leave(subscriber.member)

    def forget_offsets(self, group: str) -> None:
        """Make a group start again with the oldest records."""
        with self._cluster.changed:
            self._cluster.groups[group].committed.clear()
            self._cluster.rebalance(group)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic; keys move to other partitions, as they do in Kafka."""
        with self._cluster.changed:
            self._cluster.topics[topic].logs.extend([] for _ in range(partitions))
            for group in self._cluster.groups:
                self._cluster.rebalance(group)

    # --- state for assertions -------------------------------------------------------------------

    def records(self, topic: str) -> list[ReceivedRecord]:
        """Return all records of a topic, partition by partition."""
        with self._cluster.changed:
            return [record for log in self._cluster.topics[topic].logs for record in log]

    def history(self) -> list[ReceivedRecord]:
        """Return the records of all topics, in the order in which they were stored."""
        with self._cluster.changed:
            return list(self._cluster.history)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets at which a group would continue, by topic and partition."""
        with self._cluster.changed:
            return dict(self._cluster.groups[group].committed)


class MemoryPublisher:
    """Publishes to the broker in memory."""

    def __init__(self, cluster: Cluster, *, max_record_bytes: int) -> None:
        self._cluster = cluster
        self._max_record_bytes = max_record_bytes
        self._pressure = Backpressure()

    def publish(
        self,
        records: Sequence[Record],
        *,
        timeout: float,  # noqa: ARG002  nothing waits here
        with_offsets: bool = False,  # noqa: ARG002  always included
    ) -> Sequence[Delivery]:
        """Store `records` in order and return the outcome of each, as the port defines."""
        with self._cluster.changed:
            above, pause = self._cluster.throttle or (len(records), 0.0)
            self._pressure = Backpressure(pause=pause if len(records) > above else 0.0)
            return self._publish(records)

    def pressure(self) -> Backpressure:
        """Return the pressure after the last call: no time passes in memory."""
        return self._pressure

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def _publish(self, records: Sequence[Record]) -> list[Delivery]:
        ended: list[Delivery] = []
        # Why later records of a topic, of a key, or of the whole call are not sent.
        held: dict[tuple[str, bytes | None] | str, Delivery] = {}
        everything = ""
        if self._cluster.is_down:
            held[everything] = Delivery(outcome=DeliveryOutcome.UNSENT, reason=UNREACHABLE)
        for record in records:
            key = (record.topic, record.key)
            delivery = held.get(everything) or held.get(record.topic) or held.get(key)
            if delivery is None:
                delivery = self._deliver(record)
                if delivery.outcome is DeliveryOutcome.REJECTED and record.key is not None:
                    reason = "deferred: an earlier record of its key was rejected"
                    held[key] = Delivery(outcome=DeliveryOutcome.DEFERRED, reason=reason)
                elif delivery.outcome is DeliveryOutcome.REFUSED:
                    held[record.topic] = delivery
                elif delivery.outcome in {DeliveryOutcome.UNSENT, DeliveryOutcome.UNCONFIRMED}:
                    held[everything] = Delivery(
                        outcome=DeliveryOutcome.UNSENT, reason=delivery.reason
                    )
            ended.append(delivery)
        return ended

    def _deliver(self, record: Record) -> Delivery:
        size = len(record.value or b"") + len(record.key or b"")
        size += sum(len(name) + len(value) for name, value in record.headers)
        if size > self._max_record_bytes:
            reason = f"{size} bytes, the limit is {self._max_record_bytes}"
            return Delivery(outcome=DeliveryOutcome.REJECTED, reason=reason)
        if record.topic not in self._cluster.topics:
            reason = f"topic {record.topic} does not exist"
            return Delivery(outcome=DeliveryOutcome.REFUSED, reason=reason)
        planned = self._cluster.planned
        outcome, stored = planned.popleft() if planned else (DeliveryOutcome.ACKNOWLEDGED, True)
        if outcome is DeliveryOutcome.ACKNOWLEDGED:
            partition, offset = self._cluster.store(record)
            return Delivery(outcome=outcome, partition=partition, offset=offset)
        if outcome is DeliveryOutcome.UNCONFIRMED and stored:
            self._cluster.store(record)
        return Delivery(outcome=outcome, reason=f"{outcome.name} was ordered by the test")


class MemorySubscriber:
    """A member of a consumer group of the broker in memory."""

    def __init__(self, cluster: Cluster, member: Member) -> None:
        self.member = member
        self._cluster = cluster

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records; raises BrokerUnavailable, TopicMissing."""
        cluster, member = self._cluster, self.member
        with cluster.changed:
            cluster.require()
            cluster.join(member)
            cluster.changed.wait_for(
                lambda: cluster.is_down or cluster.has_records(member), timeout
            )
            cluster.require()
            return cluster.fetch(member, limit, limit_bytes)

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Commit these records as done; raises BrokerUnavailable."""
        with self._cluster.changed:
            self._cluster.require()
            for record in self._mine(records):
                committed = self._cluster.groups[self.member.group].committed
                place = (record.topic, record.partition)
                committed[place] = max(record.offset + 1, committed.get(place, 0))

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have these records delivered again, if their partitions still belong to this member."""
        with self._cluster.changed:
            first: dict[TopicPartition, int] = {}
            for record in self._mine(records):
                place = (record.topic, record.partition)
                first[place] = min(record.offset, first.get(place, record.offset))
            self.member.positions.update(first)

    def pause(self, places: AbstractSet[TopicPartition]) -> None:
        """Leave these partitions out of the polls, and read all others."""
        with self._cluster.changed:
            self.member.paused = frozenset(places)
            self._cluster.changed.notify_all()

    def has_caught_up(self) -> bool:
        """Whether this member has polled all records; raises BrokerUnavailable."""
        with self._cluster.changed:
            self._cluster.require()
            return self._cluster.is_member(self.member) and not self._cluster.has_records(
                self.member
            )

    def close(self) -> None:
        """Leave the group."""
        with self._cluster.changed:
            self._cluster.leave(self.member)

    def _mine(self, records: Sequence[ReceivedRecord]) -> list[ReceivedRecord]:
        mine = self.member.positions
        return [record for record in records if (record.topic, record.partition) in mine]


class MemoryTopics:
    """Creates and describes topics of the broker in memory."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create(
        self, names: Sequence[str], *, partitions: int, replication: int | None
    ) -> Sequence[str]:
        """Create the missing topics and return their names; raises BrokerError."""
        replication = 1 if replication is None else replication
        if partitions < 1 or replication < 1:
            raise BrokerError(
                f"a topic cannot have {partitions} partitions and replication {replication}: "
                "both must be at least 1"
            )
        with self._cluster.changed:
            self._cluster.require()
            missing = [name for name in dict.fromkeys(names) if name not in self._cluster.topics]
            for name in missing:
                self._cluster.create(name, partitions=partitions, replication=replication)
            return missing

    def describe(self, names: Sequence[str]) -> Mapping[str, TopicState | None]:
        """Return the state of each topic, None for a topic that does not exist."""
        with self._cluster.changed:
            self._cluster.require()
            topics = self._cluster.topics
            return {name: topics[name].state if name in topics else None for name in names}

    def cleanups(self, names: Sequence[str]) -> Mapping[str, TopicCleanup]:
        """Return that the existing topics keep all their records."""
        keeps_all = TopicCleanup(is_compacted=False, retention=None)
        return {name: keeps_all for name, state in self.describe(names).items() if state}

    def foreign_members(self, group_id: str) -> Collection[str]:
        """Return no client ids: all members of a group in memory belong to one process."""
        del group_id
        return ()

    def close(self) -> None:
        """Do nothing: there is no connection to close."""
