"""What publishing needs of a Kafka client: there are two that do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.ports.broker import Backpressure, Record


class RecordResult(Protocol):
    """How a record ended."""

    @property
    def is_done(self) -> bool:
        """Whether there is an answer."""
        ...

    @property
    def exception(self) -> BaseException | None:
        """What was wrong, a KafkaError of kafka-python; None for an acknowledged record."""
        ...

    @property
    def offset(self) -> int:
        """Of an acknowledged record; below 0 where the broker did not say."""
        ...


class ProduceRound(Protocol):
    """Records on their way together: of each partition's either all are in the log, or a part.

    Never one whose earlier one of the round is not.
    """

    def take(self, record: Record, partition: int) -> bool:
        """Add a record, or return False: it has to wait for the next round.

        Raises KafkaError or ValueError for a record that the client does not take.
        """
        ...

    def send(self, deadline: float) -> list[Any]:
        """Send everything and return a RecordResult for each; wait until `deadline` (monotonic)."""
        ...


class ProducerClient(Protocol):
    """A connected producer: acks=all, idempotent."""

    asked_for: set[str]
    """Topics that it keeps track of."""

    def knows(self, topic: str) -> bool:
        """Whether the metadata at hand tell of this topic."""
        ...

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has; raises KafkaError for an unknown one."""
        ...

    def pressure(self) -> Backpressure:
        """Tell how hard the brokers are pressed: the longest pause that one of them asks for."""
        ...

    def round(self) -> ProduceRound:
        """Begin a round; the one before has ended."""
        ...

    def close(self) -> None:
        """Close the connection after sending what is under way, within a few seconds."""
        ...

    def discard(self) -> None:
        """Close without waiting; what is not acknowledged yet may or may not be in the log."""
        ...


MESSAGE_MAX_BYTES: Final = 1_048_588
"""Kafka's default for `message.max.bytes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerSettings:
    """How a client produces, whichever it is."""

    batch_bytes: int = 262_144
    max_record_bytes: int = MESSAGE_MAX_BYTES
    compression: str | None = None
    """gzip, lz4, snappy or zstd."""
    request_timeout: float = 5.0
    """Seconds after which a request without an answer is repeated on a new connection."""
    whole_batches: bool = True
    """kafka-python only: whole batches, where the client's version allows it."""

    @property
    def max_request_bytes(self) -> int:
        """What the client itself lets through: the publisher has measured the records before."""
        return max(4 * MESSAGE_MAX_BYTES, 2 * self.max_record_bytes)


class Connect(Protocol):
    """Connects a client."""

    def __call__(
        self, connection: KafkaConnection, settings: ProducerSettings, *, within: float
    ) -> ProducerClient:
        """Connect within some seconds; raises BrokerUnavailable or BrokerError."""
        ...
