"""Reading the records between two offsets of a partition, without a consumer group.

It imports little: Spark's workers use it, and have only the client of shieldtx's dependencies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from kafka import TopicPartition
from kafka.errors import OffsetOutOfRangeError

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.consumer_patches import Consumer
from shieldtx.errors import BrokerError, BrokerUnavailable

CONNECT_S: Final = 20.0
PATIENCE_S: Final = 60.0
_CLOSE_S: Final = 3.0
_POLL_MS: Final = 500
_BATCH: Final = 5_000
_OPTIONS: Final[dict[str, Any]] = {
    "group_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    # A reader of a range has to know which offsets are missing.
    "auto_offset_reset": "none",
    # For one partition at a time: the default of 1 MB would need a request per thousand records.
    "max_partition_fetch_bytes": 8 * 1024 * 1024,
    "receive_message_max_bytes": 2**31 - 1,
    # The client's pure Python implementation takes a second per megabyte.
    "check_crcs": find_spec("crc32c") is not None,
    "metrics_enabled": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetRange:
    """Consecutive offsets of a partition; not every offset has a record."""

    topic: str
    partition: int
    start: int
    end: int
    """The first offset after the range."""

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.end - self.start

    def cut(self, size: int) -> Iterator[OffsetRange]:
        """Yield the range in parts of at most `size` offsets."""
        for start in range(self.start, self.end, size):
            yield OffsetRange(
                topic=self.topic,
                partition=self.partition,
                start=start,
                end=min(start + size, self.end),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRange:
    """Some of a range's records, in the order of their offsets."""

    range: OffsetRange
    records: list[Any]
    """Records in the client's format."""
    deleted_to: int | None = None
    """Records before this offset are no longer in the topic; None: nothing is missing."""


class RangeReader:
    """Reads ranges one after the other.

    Records of aborted transactions are left out, as in shieldtx's consumers.
    """

    def __init__(self, connection: KafkaConnection, *, patience: float = PATIENCE_S) -> None:
        """Store the options without connecting; `patience`: maximum seconds without progress."""
        self._connection = connection
        self._patience = patience

    def read(self, ranges: Iterable[OffsetRange]) -> Iterator[RecordRange]:
        """Yield the records between the ranges' bounds.

        Raises BrokerUnavailable when no record arrives any more, BrokerError for an error that
        waiting does not fix.
        """
        consumer, _ = self._connection.open(Consumer, within=CONNECT_S, **_OPTIONS)
        try:
            with self._connection.translated("reading topics"):
                for range_ in ranges:
                    yield from self._read_one(consumer, range_)
        finally:
            with suppress(Exception):  # there are no offsets to lose
                consumer.close(autocommit=False, timeout_ms=int(_CLOSE_S * 1000))  # type: ignore[no-untyped-call]

    def _read_one(self, consumer: Any, range_: OffsetRange) -> Iterator[RecordRange]:
        """Read to the end of a range by the client's position.

        The last offsets may be transaction markers or compacted records: waiting for a record of
        the last offset might never end.
        """
        place = TopicPartition(range_.topic, range_.partition)
        consumer.assign([place])
        consumer.seek(place, range_.start)
        position, since = range_.start, time.monotonic()
        while position < range_.end:
            try:
                fetched = consumer.poll(timeout_ms=_POLL_MS, max_records=_BATCH)
            except OffsetOutOfRangeError:
                deleted_to = self._beginning(consumer, place, position)
                consumer.seek(place, deleted_to)
                yield RecordRange(range=range_, records=[], deleted_to=deleted_to)
                fetched = {}
            records = [r for r in fetched.get(place, ()) if r.offset < range_.end]
            if records:
                yield RecordRange(range=range_, records=records)
            before, position = position, consumer.position(place)
            now = time.monotonic()
            if position != before:
                since = now
            elif now - since > self._patience:
                raise BrokerUnavailable(
                    f"Kafka at {self._connection.bootstrap_servers}: nothing came from partition "
                    f"{range_.partition} of {range_.topic} for {self._patience:.0f} s, at offset "
                    f"{position} of {range_.end}"
                )

    def _beginning(self, consumer: Any, place: TopicPartition, position: int) -> int:
        beginning = int(consumer.beginning_offsets([place])[place])
        if beginning > position:
            return beginning
        raise BrokerError(
            f"Kafka at {self._connection.bootstrap_servers}: {place.topic} has no offset {position}"
            " any more in its partition "
            f"{place.partition}: the topic was recreated or truncated while it was read"
        )
