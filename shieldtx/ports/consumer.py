"""The port of a consumer to the source of its records."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, TopicPartition
from shieldtx.ports.inbox import IncomingEvent, Parked


class FetchedBatch(NamedTuple):
    """Records in the order of reading, and their results: events, parked records, ignored ones."""

    records: tuple[ReceivedRecord, ...] = ()
    arrivals: tuple[IncomingEvent, ...] = ()
    parked: tuple[Parked, ...] = ()
    ignored: int = 0
    """Events of types that the group has no handler for."""


class RecordFetcher(Protocol):
    """The source of a consumer's records; used by one thread at a time."""

    def fetch(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> FetchedBatch:
        """Return up to `limit` records, waiting up to `timeout` seconds; raises BrokerError.

        The record that brings the total size to `limit_bytes` is the last one.
        """
        ...

    def commit(self, batch: FetchedBatch) -> None:
        """Commit the offsets of a batch whose rows are committed; raises BrokerError."""
        ...

    def rewind(self, batch: FetchedBatch) -> None:
        """Read a batch again: its rows could not be stored."""
        ...

    def pause(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Stop fetching from these partitions, and resume all others."""
        ...

    def has_caught_up(self) -> bool:
        """Whether all records are fetched, except those of paused partitions.

        Raises BrokerUnavailable.
        """
        ...

    def close(self) -> None:
        """Leave the group."""
        ...
