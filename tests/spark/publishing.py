"""Topics that hold the records that a test plants."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from shieldtx.brokers.cloudevents import encode
from shieldtx.brokers.kafka.broker import KafkaConnection, KafkaPublisher
from shieldtx.domain.events import Envelope, new_event_id, physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import DeliveryOutcome, Record
from spark.sources.kafka_data_source import Log

WRITTEN = datetime(2026, 1, 15, 12, 0, 0, 123456, tzinfo=UTC)


class Topic:
    """A logical topic of one kind, with a unique name or prefix."""

    def __init__(self, bootstrap: str, *, logical: str = "", kind: TxKind = TxKind.COMMIT) -> None:
        own = uuid.uuid4().hex
        self.logical = logical or f"orders-{own}"
        self.kind = kind
        self.prefix = f"{own}." if logical else "t."
        self.name = physical_topic(self.prefix, self.logical, kind)
        self.connection = KafkaConnection(bootstrap_servers=bootstrap)

    @property
    def log(self) -> Log:
        return Log(topic=self.logical, kind=self.kind.value, name=self.name)

    def make(self, partitions: int = 1, **configs: str) -> Topic:
        with self._admin() as admin:
            wanted = {
                "num_partitions": partitions,
                "replication_factor": 1,
                "configs": {name.replace("_", "."): value for name, value in configs.items()},
            }
            admin.create_topics({self.name: wanted})
            admin.wait_for_topics([self.name])
        return self

    def delete(self) -> None:
        with self._admin() as admin:
            admin.delete_topics([self.name])
            while any(topic["name"] == self.name for topic in admin.describe_topics()):
                time.sleep(0.05)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        with self._admin() as admin:
            admin.delete_records({TopicPartition(self.name, partition): offset})

    def add_partitions(self, number: int) -> None:
        """Raise the number of partitions of the topic to `number`."""
        with self._admin() as admin:
            admin.create_partitions({self.name: number})

    def event(self, **fields: Any) -> Envelope:
        defaults = {
            "id": new_event_id(),
            "type": "orders.placed",
            "source": "orders",
            "topic": self.logical,
            "payload": '{"card": "payload out of sight"}',
            "time": WRITTEN,
            "kind": self.kind,
            "key": "k",
        }
        return Envelope(**{**defaults, **fields})

    def publish(self, *events: Envelope) -> None:
        self.send([encode(event, self.prefix) for event in events])

    def publish_at(self, time: datetime, *events: Envelope, partition: int = 0) -> None:
        """Publish with another time of the record."""
        with self.producer() as producer:
            for event in events:
                record = encode(event, self.prefix)
                producer.send(
                    self.name,
                    record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=partition,
                    timestamp_ms=int(time.timestamp() * 1000),
                )

    def send(self, records: Sequence[Record]) -> None:
        publisher = KafkaPublisher(self.connection)
        try:
            answers = publisher.publish(records, timeout=60)
        finally:
            publisher.close()
        assert {answer.outcome for answer in answers} <= {DeliveryOutcome.ACKNOWLEDGED}, answers[0]

    @contextmanager
    def producer(self, **options: Any) -> Iterator[KafkaProducer]:
        """Return a producer without settings of shieldtx."""
        producer = KafkaProducer(
            bootstrap_servers=self.connection.bootstrap_servers,
            enable_idempotence=True,
            **options,
        )
        yield producer
        producer.flush()
        producer.close()

    @contextmanager
    def _admin(self) -> Iterator[KafkaAdminClient]:
        admin = KafkaAdminClient(bootstrap_servers=self.connection.bootstrap_servers)
        yield admin
        admin.close()
