"""What publishing requires of a Kafka client; there are two implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.ports.broker import Backpressure, Record


class RecordResult(Protocol):
    """The outcome of a record."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        ...

    @property
    def exception(self) -> BaseException | None:
        """The error, a KafkaError of kafka-python; None for an acknowledged record."""
        ...

    @property
    def offset(self) -> int:
        """Offset of an acknowledged record; below 0 where the broker did not return it."""
        ...


class ProduceRound(Protocol):
    """Records that are sent together; of each partition, the log gets all or the first ones.

    A record is never in the log without the earlier records of its partition in the round.
    """

    def take(self, record: Record, partition: int) -> bool:
        """Add a record, or return False: it has to wait for the next round.

        Raises KafkaError or ValueError for a record that the client refuses.
        """
        ...

    def send(self, deadline: float) -> list[Any]:
        """Send all records and return a RecordResult for each, at the latest at `deadline`.

        `deadline` is a time of the monotonic clock.
        """
        ...


class ProducerClient(Protocol):
    """A connected producer: acks=all, idempotent."""

    asked_for: set[str]
    """Topics whose metadata the client refreshes."""

    def knows(self, topic: str) -> bool:
        """Whether the cached metadata include this topic."""
        ...

    def partition_count(self, topic: str, *, within: float) -> int:
        """Return how many partitions a topic has; raises KafkaError for an unknown topic.

        Raises KafkaTimeoutError if no broker answers `within` the given seconds.
        """
        ...

    def pressure(self) -> Backpressure:
        """Return the pressure on the brokers: the longest pause that a broker asks for."""
        ...

    def round(self) -> ProduceRound:
        """Begin a round; the previous round must have ended."""
        ...

    def close(self) -> None:
        """Close the connection after sending the records in flight, within a few seconds."""
        ...

    def discard(self) -> None:
        """Close without waiting; unacknowledged records may or may not be in the log."""
        ...


MESSAGE_MAX_BYTES: Final = 1_048_588
"""Kafka's default for `message.max.bytes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings:
    """Settings of producing, for any client."""

    batch_bytes: int = 262_144
    max_record_bytes: int = MESSAGE_MAX_BYTES
    compression: str | None = None
    """gzip, lz4, snappy or zstd."""
    request_timeout: float = 5.0
    """Seconds after which a request without a response is repeated on a new connection."""
    whole_batches: bool = True
    """kafka-python only: whole batches, if the client's version supports them."""

    @property
    def max_request_bytes(self) -> int:
        """Request size that the client accepts: the publisher has checked the records before."""
        return max(4 * MESSAGE_MAX_BYTES, 2 * self.max_record_bytes)


class Connect(Protocol):
    """Connects a client."""

    def __call__(
        self, connection: KafkaConnection, settings: ProducerSettings, *, within: float
    ) -> ProducerClient:
        """Connect within the given seconds; raises BrokerUnavailable or BrokerError."""
        ...
