"""The metrics of the consumers of a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Total

from shieldtx.domain.events import Envelope, physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.metrics import names
from shieldtx.metrics.guard import Guard
from shieldtx.metrics.limited_labels import LimitedLabels
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, Subscriber, TopicPartition
from shieldtx.ports.inbox import Attempt, AttemptOutcome


class ConsumerMetrics:
    """The metrics of the consumers of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.guard = Guard()
        self.topics = LimitedLabels(names.MOST_TOPICS)
        self.destinations = LimitedLabels(names.MOST_TOPICS)
        self.errors = LimitedLabels(names.MOST_ERRORS)
        self.attempts = Total(
            "shieldtx_consumer_attempts",
            "Attempts at events whose outcome is committed.",
            ["topic", "kind", "group", "outcome"],
            registry=registry,
        )
        self.paused = Gauge(
            "shieldtx_consumer_paused_partitions",
            "Partitions that no consumer of the group reads: too many of their events wait.",
            [names.GROUP, names.DESTINATION],
            registry=registry,
        )
        self.consumed = Total(
            names.CONSUMED,
            "Messages that the consumer has read, repeated ones included.",
            [names.SYSTEM, names.OPERATION_NAME, names.DESTINATION, names.GROUP],
            registry=registry,
        )
        self.processed = Histogram(
            names.PROCESSED,
            "Duration of the calls of handlers with their interceptors, repeated calls included.",
            [names.SYSTEM, names.OPERATION_NAME, names.DESTINATION, names.GROUP, names.ERROR],
            buckets=names.DURATIONS,
            registry=registry,
        )


class GroupMeter:
    """Counts the attempts of one consumer group (the port AttemptMeter)."""

    def __init__(self, metrics: ConsumerMetrics, *, group: str, topic_prefix: str) -> None:
        """Count for a group whose topics have this prefix at the broker."""
        self._metrics = metrics
        self._group = group
        self._prefix = topic_prefix
        self._calls: dict[tuple[str, TxKind, str], Histogram] = {}
        """The histogram of each topic, kind and error: making its labels takes microseconds."""

    def called(self, event: Envelope, *, took: float, error: BaseException | None = None) -> None:
        """Count one call of a handler."""
        with self._metrics.guard:
            self._observe(event, took, error)

    def _observe(self, event: Envelope, took: float, error: BaseException | None) -> None:
        problem = "" if error is None else self._metrics.errors.of(type(error).__name__)
        place = (event.topic, event.kind, problem)
        histogram = self._calls.get(place)
        if histogram is None:
            topic = physical_topic(self._prefix, event.topic, event.kind)
            destination = self._metrics.destinations.of(topic)
            histogram = self._calls[place] = self._metrics.processed.labels(
                names.KAFKA, "process", destination, self._group, problem
            )
        histogram.observe(took)

    def ended(self, attempts: Sequence[Attempt], outcome: AttemptOutcome) -> None:
        """Count attempts by topic and kind."""
        with self._metrics.guard:
            counts = Counter((each.envelope.topic, each.envelope.kind) for each in attempts)
            for (topic, kind), count in counts.items():
                labels = (self._metrics.topics.of(topic), kind.value.lower(), self._group)
                self._metrics.attempts.labels(*labels, outcome.value.lower()).inc(count)


class MeteredSubscriber:
    """A subscriber that counts what it reads and pauses (the port Subscriber)."""

    def __init__(self, subscriber: Subscriber, metrics: ConsumerMetrics, *, group: str) -> None:
        self._subscriber = subscriber
        self._metrics = metrics
        self._group = group
        self._paused: frozenset[str] = frozenset()

    def poll(
        self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES
    ) -> Sequence[ReceivedRecord]:
        """Read records, and count them by topic."""
        records = self._subscriber.poll(timeout=timeout, limit=limit, limit_bytes=limit_bytes)
        # The position is after these records: an error here would leave them out.
        with self._metrics.guard:
            for topic, count in Counter(record.topic for record in records).items():
                destination = self._metrics.destinations.of(topic)
                labels = (names.KAFKA, "poll", destination, self._group)
                self._metrics.consumed.labels(*labels).inc(count)
        return records

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Commit offsets."""
        self._subscriber.commit(records)

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have records delivered again."""
        self._subscriber.rewind(records)

    def pause(self, places: AbstractSet[TopicPartition]) -> None:
        """Pause partitions, and count them by topic."""
        self._subscriber.pause(places)
        with self._metrics.guard:
            counts = Counter(self._metrics.destinations.of(topic) for topic, _ in places)
            for topic in self._paused.union(counts):
                self._metrics.paused.labels(self._group, topic).set(counts[topic])
            self._paused = frozenset(counts)

    def has_caught_up(self) -> bool:
        """Ask the subscriber."""
        return self._subscriber.has_caught_up()

    def close(self) -> None:
        """Leave the group."""
        self._subscriber.close()
        with self._metrics.guard:
            for topic in self._paused:
                self._metrics.paused.labels(self._group, topic).set(0)
