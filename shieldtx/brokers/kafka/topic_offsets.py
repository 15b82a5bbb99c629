"""First and last offsets of topics at one moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from kafka import TopicPartition

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.consumer_patches import Consumer
from shieldtx.brokers.kafka.range_reader import OffsetRange
from shieldtx.brokers.kafka.topic_admin import KafkaTopics
from shieldtx.errors import BrokerError, TopicMissing

_POLL_S: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicOffsets:
    """The offsets of a topic, or of its records since a time."""

    ranges: tuple[OffsetRange, ...]
    """One range per partition, in their order; empty if there are no records."""
    later: frozenset[int]
    """Partitions whose range begins later than their log, which has earlier records."""
    topic_id: str | None = None
    """Changes when the topic is deleted and recreated; None for an old broker without ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicEnds:
    """The id of a topic, and the ends of its partitions at one moment."""

    topic_id: str | None
    """As in `TopicOffsets`."""
    ends: Mapping[int, int]


class TopicOffsetReader:
    """Reads the offsets of topics; it connects with its first call."""

    def __init__(self, connection: KafkaConnection, *, timeout: float = 10.0) -> None:
        self._connection = connection
        self._timeout = timeout
        self._topics = KafkaTopics(connection, timeout=timeout)
        self._consumer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def of(self, topic: str, *, since: datetime | None = None) -> TopicOffsets:
        """Return the offsets of the topic now; with `since`, from the first record of that time on.

        Raises TopicMissing, BrokerUnavailable, and BrokerError for a topic that may not be read, or
        whose records cannot be read: consumers see nothing after an open transaction.
        """
        state = self._topics.describe([topic])[topic]
        if state is None:
            raise TopicMissing(f"no topic {topic} at {self._connection.bootstrap_servers}")
        places = [TopicPartition(topic, partition) for partition in range(state.partitions)]
        with self._connection.translated(f"asking how far {topic} reaches"):
            consumer = self._open()
            timeout = int(self._timeout * 1000)
            begins = consumer.beginning_offsets(places, timeout_ms=timeout)
            ends = consumer.end_offsets(places, timeout_ms=timeout)
            starts = dict(begins)
            if since is not None:
                moment = max(0, int(since.timestamp() * 1000))
                found = consumer.offsets_for_times(dict.fromkeys(places, moment), timeout)
                for place in places:
                    # None: every record is older.
                    at = found[place].offset if found[place] else ends[place]
                    starts[place] = max(begins[place], at)
        self._await_transactions(topic, {place.partition: ends[place] for place in places})
        return TopicOffsets(
            ranges=tuple(
                OffsetRange(topic=topic, partition=p.partition, start=starts[p], end=ends[p])
                for p in places
            ),
            later=frozenset(p.partition for p in places if starts[p] > begins[p]),
            topic_id=state.topic_id,
        )

    def ends(self, topics: Sequence[str]) -> Mapping[str, TopicEnds | None]:
        """Return the ends of topics, open transactions included; None: there is no such topic.

        Raises BrokerUnavailable, and BrokerError for topics that may not be read.
        """
        states = self._topics.describe(topics)
        places = [
            TopicPartition(topic, partition)
            for topic, state in states.items()
            for partition in range(state.partitions if state else 0)
        ]
        with self._connection.translated("asking where topics end"):
            timeout = int(self._timeout * 1000)
            found = self._open().end_offsets(places, timeout_ms=timeout) if places else {}
        return {
            topic: None
            if state is None
            else TopicEnds(
                topic_id=state.topic_id,
                ends={p: found[TopicPartition(topic, p)] for p in range(state.partitions)},
            )
            for topic, state in states.items()
        }

    def existing(self, topics: Sequence[str]) -> frozenset[str]:
        """Return the topics that exist; raises like `ends`."""
        states = self._topics.describe(topics)
        return frozenset(topic for topic, state in states.items() if state is not None)

    def cluster_id(self) -> str | None:
        """Return the id of the cluster, as `KafkaTopics` does."""
        return self._topics.cluster_id()

    def _await_transactions(self, topic: str, ends: Mapping[int, int]) -> None:
        """Wait a little until no transaction that began before these ends is open."""
        deadline = time.monotonic() + self._timeout
        while True:
            stable = self._topics.stable_ends(topic, list(ends))
            open_ = {p: stable[p] for p, end in ends.items() if stable[p] < end}
            if not open_:
                return
            if time.monotonic() > deadline:
                partition, offset = min(open_.items())
                raise BrokerError(
                    f"partition {partition} of {topic} holds an open transaction of another "
                    f"producer, since offset {offset}: no consumer receives later records. "
                    "`kafka-transactions.sh find-hanging` finds it, `abort` ends it"
                )
            time.sleep(_POLL_S)

    def is_compacted(self, topic: str) -> bool:
        """Return whether a key's new records replace its old ones, as `KafkaTopics` does."""
        return self._topics.is_compacted(topic)

    def close(self) -> None:
        """Close the connection."""
        self._topics.close()
        if self._consumer is not None:
            self._consumer.close(autocommit=False)

    def _open(self) -> Any:
        if self._consumer is None:
            self._consumer, _ = self._connection.open(
                Consumer,
                within=self._timeout,
                group_id=None,
                enable_auto_commit=False,
                metrics_enabled=False,
            )
        return self._consumer
