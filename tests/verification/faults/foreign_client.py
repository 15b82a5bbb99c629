"""Another client of the broker: records and offsets that the banks did not write."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from confluent_kafka import (
    OFFSET_BEGINNING,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.verification.faults.topics import TIMEOUT_S, Place, messages, reader

Headers = tuple[tuple[str, bytes | None], ...]
T = TypeVar("T")

_NOT_YET = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

LARGEST = 64_000_000
"""Maximum bytes of a record from the foreign client; brokers accept less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawRecord:
    """A record, byte for byte."""

    topic: str
    partition: int
    offset: int = -1
    """-1: not on the topic yet."""
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def place(self) -> Place:
        """Return the position of the record."""
        return self.topic, self.partition, self.offset

    @property
    def id(self) -> UUID:
        """Return the id of its event; raises KeyError without one."""
        return UUID((dict(self.headers)["ce_id"] or b"").decode())

    def evolve(self, **changes: object) -> RawRecord:
        """Return a record with other bytes, or for another position."""
        return replace(self, offset=-1, **changes)

    def headed(self, **changes: bytes | None) -> RawRecord:
        """Return the record with other values of some headers; new headers come last."""
        kept = [(name, changes.pop(name, value)) for name, value in self.headers]
        return self.evolve(headers=(*kept, *changes.items()))

    def without(self, *names: str) -> RawRecord:
        """Return the record without some headers."""
        return self.evolve(headers=tuple(h for h in self.headers if h[0] not in names))


class ForeignClient:
    """A client that produces any records, and moves the offsets of groups."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "message.max.bytes": LARGEST}
        )
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})

    def read(self, *topics: str) -> list[RawRecord]:
        """Read topics whole."""
        return [_raw(message) for message in messages(self._bootstrap, topics)]

    def put(self, *records: RawRecord) -> list[RawRecord]:
        """Produce records, each in its partition; return them with their positions."""
        return self._put(self._producer, records)

    @contextmanager
    def aborted(self, *records: RawRecord) -> Iterator[list[RawRecord]]:
        """Produce records in a transaction that is open inside the block and aborted at its end."""
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": f"foreign-{uuid.uuid4()}"}
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        try:
            yield self._put(producer, records)
        finally:
            producer.abort_transaction(TIMEOUT_S)

    def _put(self, producer: Producer, records: Sequence[RawRecord]) -> list[RawRecord]:
        reports: list[tuple[KafkaError | None, Message]] = []
        for record in records:
            producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                on_delivery=lambda error, message: reports.append((error, message)),
            )
            # One by one, so that the reports arrive in the order of the records.
            if producer.flush(TIMEOUT_S):
                raise TimeoutError(f"no answer of the broker within {TIMEOUT_S} s")
        for error, _ in reports:
            if error is not None:
                raise KafkaException(error)
        return [
            replace(record, partition=message.partition(), offset=message.offset())
            for record, (_, message) in zip(records, reports, strict=True)
        ]

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return len(self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record of each partition."""
        client = reader(self._bootstrap)
        try:
            return {
                p: client.get_watermark_offsets(TopicPartition(topic, p), timeout=TIMEOUT_S)[1]
                for p in range(self.partitions(topic))
            }
        finally:
            client.close()

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a group, without partitions that have none."""
        asked = ConsumerGroupTopicPartitions(
            group, [TopicPartition(topic, p) for p in range(self.partitions(topic))]
        )
        answer = _answered(lambda: self._admin.list_consumer_group_offsets([asked])[group])
        return {p.partition: p.offset for p in answer.topic_partitions if p.offset >= 0}

    def has_read(self, group: str, topic: str, upto: Mapping[int, int]) -> bool:
        """Return whether a group has committed these offsets, or later ones."""
        committed = self.offsets(group, topic)
        return all(committed.get(partition, 0) >= offset for partition, offset in upto.items())

    def move(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Change the offsets of a group without members."""
        wanted = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
        asked = ConsumerGroupTopicPartitions(group, wanted)
        moved = _answered(lambda: self._admin.alter_consumer_group_offsets([asked])[group])
        for partition in moved.topic_partitions:
            if partition.error is not None:
                raise KafkaException(partition.error)

    def members(self, group: str) -> list[set[tuple[str, int]]]:
        """Return the partitions of each member of a group; empty during a rebalance."""
        described = _answered(lambda: self._admin.describe_consumer_groups([group])[group])
        if described.state.name != "STABLE":
            return []
        return [
            {(p.topic, p.partition) for p in member.assignment.topic_partitions}
            for member in described.members
        ]


class Echo:
    """Produces every record of a topic again into the next partition, as soon as it exists.

    In each partition the copies keep their order.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.copies: list[RawRecord] = []
        self._topic = topic
        self._client = ForeignClient(bootstrap)
        self._reader = reader(bootstrap)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._partitions = self._client.partitions(self._topic)
        self._reader.assign(
            [TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in range(self._partitions)]
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._reader.close()

    def _run(self) -> None:
        echoed: set[Place] = set()
        while not self._stop.is_set():
            heard = self._heard(echoed)
            put = self._client.put(*heard)
            echoed |= {copy.place for copy in put}
            self.copies += put

    def _heard(self, echoed: set[Place]) -> Sequence[RawRecord]:
        found = self._reader.consume(100, 0.05)
        records = [_raw(message) for message in found if message.error() is None]
        return [
            r.evolve(partition=(r.partition + 1) % self._partitions)
            for r in records
            if r.place not in echoed
        ]


def _answered(ask: Callable[[], Future[T]]) -> T:
    """Return a coordinator's answer as soon as the broker has found the coordinator."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask().result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _raw(message: Message) -> RawRecord:
    return RawRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
