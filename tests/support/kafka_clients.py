"""The clients that a publisher may have: a test of one of them must pass for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shieldtx.brokers.kafka import confluent_producer, kafka_python_producer
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.producer_client import Connect, ProducerClient, ProducerSettings


def _record_by_record(
    connection: KafkaConnection, settings: ProducerSettings, **asked: Any
) -> ProducerClient:
    """Connect as with a version of kafka-python that has other internals."""
    return kafka_python_producer.connect(
        connection, replace(settings, whole_batches=False), **asked
    )


CLIENTS: dict[str, Connect] = {
    "kafka-python": kafka_python_producer.connect,
    "kafka-python, record by record": _record_by_record,
    "confluent-kafka": confluent_producer.connect,
}
