"""Reading what lies between two offsets of a partition, without a consumer group.

Imports little: Spark's workers read with it, and have no more of shieldtx's needs than the client.
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
_OPTIONS: Final = {
    "group_id": None,
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    # Whoever reads a range has to know what is missing of it.
    "auto_offset_reset": "none",
    # A partition at a time: the client's own 1 MB would make a request of every thousand records.
    "max_partition_fetch_bytes": 8 * 1024 * 1024,
    "receive_message_max_bytes": 2**31 - 1,
    # The client's pure Python takes a second for a megabyte.
    "check_crcs": find_spec("crc32c") is not None,
    "metrics_enabled": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetRange:
    """Some consecutive offsets of a partition; not each of them need be a record's."""

    topic: str
    partition: int
    start: int
    end: int
    """The first offset behind it."""

    @property
    def size(self) -> int:
        """How many offsets it has."""
        return self.end - self.start

    def cut(self, size: int) -> Iterator[OffsetRange]:
        """Cut it into ranges of at most `size` offsets."""
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
    """As the client shows them."""
    deleted_to: int | None = None
    """Whatever lay before this offset is not in the topic any more; None: nothing is missing."""


class RangeReader:
    """Reads ranges one after the other.

    Records of aborted transactions are left out, as shieldtx's consumers leave them out.
    """

    def __init__(self, connection: KafkaConnection, *, patience: float = PATIENCE_S) -> None:
        """Connect to nothing yet; without any progress for `patience` seconds it gives up."""
        self._connection = connection
        self._patience = patience

    def read(self, ranges: Iterable[OffsetRange]) -> Iterator[RecordRange]:
        """Return the records between the ranges' bounds.

        Raises BrokerUnavailable when no record comes any more, BrokerError for what waiting does
        not mend.
        """
        consumer, _ = self._connection.open(Consumer, within=CONNECT_S, **_OPTIONS)
        try:
            with self._connection.translated("reading topics"):
                for range_ in ranges:
                    yield from self._read_one(consumer, range_)
        finally:
            with suppress(Exception):  # it has no offsets to lose
                consumer.close(autocommit=False, timeout_ms=int(_CLOSE_S * 1000))  # type: ignore[no-untyped-call]

    def _read_one(self, consumer: Any, range_: OffsetRange) -> Iterator[RecordRange]:
        """Read to the end of a range by the client's position.

        The last offsets may be those of transaction markers or of records that were compacted away:
        to wait for a record of the last offset might be to wait for ever.
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
                    f"Kafka at {self._connection.bootstrap_servers}: nothing came of partition "
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
