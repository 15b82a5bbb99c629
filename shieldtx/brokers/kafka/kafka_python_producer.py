"""kafka-python's producer, with the additions that publishing needs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from kafka import KafkaProducer, codec
from kafka.errors import KafkaError

from shieldtx.brokers.client_options import Role
from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.kafka_python_batching import (
    TAKES_WHOLE_BATCHES,
    BatchedProduceRound,
    SingleProduceRound,
)
from shieldtx.brokers.kafka.network_patches import Network
from shieldtx.brokers.kafka.producer_client import ProduceRound, ProducerSettings
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import Backpressure

_CLOSE_S: Final = 2.0
_CODECS: Final = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}
"""The packages of compressions that Python does not contain."""


def connect(connection: KafkaConnection, settings: ProducerSettings, *, within: float) -> Producer:
    """Connect a producer within the given seconds; raises BrokerUnavailable or BrokerError."""
    whole = settings.whole_batches and TAKES_WHOLE_BATCHES
    producer, network = connection.open(
        Producer,
        within=within,
        role=Role.PRODUCER,
        acks="all",
        # Explicit: otherwise a conflicting option would silently turn it off.
        enable_idempotence=True,
        compression_type=settings.compression,
        batch_size=settings.batch_bytes,
        # With single records, a flush ends each round; until then no half-full batch is sent.
        linger_ms=0 if whole else 1_000,
        request_timeout_ms=int(settings.request_timeout * 1000),
        # Practically unlimited: the deadline of a call ends all its records.
        delivery_timeout_ms=3_600_000,
        max_block_ms=1_000,
        max_request_size=settings.max_request_bytes,
        # The delay until added partitions are used.
        metadata_max_age_ms=60_000,
        metrics_enabled=False,
    )
    producer.network = network
    producer.record_by_record = None if whole else settings.batch_bytes
    return producer


def require_codec(compression: str | None) -> None:
    """Raise ConfigurationError if kafka-python lacks the package of a compression."""
    if compression is not None and not getattr(codec, f"has_{compression}")():
        raise ConfigurationError(
            f"compression.type={compression} needs a package that is not installed, for example "
            f"{_CODECS[compression]}; or use gzip, or SHIELDTX_KAFKA_PRODUCER=confluent-kafka"
        )


class Producer(KafkaProducer):
    """A producer that can be closed with records in flight (the protocol ProducerClient)."""

    network: Network
    record_by_record: int | None = None
    """Bytes of a batch where the fast way is not used."""
    _discarded = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.asked_for: set[str] = set()
        """Topics whose metadata the client refreshes: ten times a second if they do not exist."""

    def knows(self, topic: str) -> bool:
        """Whether the cached metadata include this topic."""
        return self.network.cluster.partitions_for_topic(topic) is not None

    def partition_count(self, topic: str, *, within: float) -> int:
        """Return how many partitions a topic has; raises KafkaTimeoutError for an unknown topic."""
        self.asked_for.add(topic)
        usual = self.config["max_block_ms"]
        self.config["max_block_ms"] = int(within * 1000)  # what partitions_for waits
        try:
            return len(self.partitions_for(topic))  # type: ignore[no-untyped-call]
        finally:
            self.config["max_block_ms"] = usual

    def pressure(self) -> Backpressure:
        """Return the pressure on the brokers.

        A throttled broker responds at once with a pause, and reads no request before its end
        (KIP-219). The client sends it none meanwhile. The client has no buffer of its own that
        could be full, because each round is sent whole.
        """
        delay_of = self.network.throttle_delay
        delays = [delay_of(b.node_id) for b in self.network.cluster.brokers()]  # type: ignore[no-untyped-call]
        return Backpressure(pause=max(delays, default=0) / 1000)

    def round(self) -> ProduceRound:
        """Begin a round."""
        if self.record_by_record is None:
            return BatchedProduceRound(self)
        return SingleProduceRound(self, self.record_by_record)

    def flush(self, timeout: float | None = None) -> None:
        """Send all records and wait for them, up to `timeout` seconds for each batch."""
        if not self._discarded:
            super().flush(timeout)  # type: ignore[no-untyped-call]

    def close(self, timeout: float | None = _CLOSE_S, null_logger: bool = False) -> None:  # noqa: FBT001, FBT002  as in the base class
        """Close the connection after sending the records in flight, within a few seconds."""
        try:
            super().close(timeout, null_logger)  # type: ignore[no-untyped-call]
        except KafkaError:
            self.discard()

    def discard(self) -> None:
        """Close without waiting; unacknowledged records may or may not be in the log.

        The client's own close() waits for its batches first. If they do not end, it raises without
        having closed anything.
        """
        self._discarded = True
        super().close(timeout=0)  # type: ignore[no-untyped-call]

    def __del__(self) -> None:
        """Discard an unclosed client: its own close() would wait, and switch its logger off."""
        with suppress(Exception):
            self.discard()
