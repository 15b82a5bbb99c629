"""kafka-python's consumer, mended where it would stop for ever (kafka-python 3.0.12).

It does so before a record whose headers have names that are no UTF-8, though Kafka takes any bytes
as a name, and at a partition that was paused and is resumed. It also spins while a heartbeat waits
for its answer.
"""

from __future__ import annotations

import time
from itertools import islice
from math import inf
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch

_ESCAPED: Final = "surrogateescape"
_QUICK_S: Final = 0.005
_REST_S: Final = 0.01


class Consumer(KafkaConsumer):
    """A consumer that shows bytes of a name that are no UTF-8 as lone surrogates."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._fetcher.PartitionRecords = _PartitionRecords
        self._fetcher._append = self._append  # type: ignore[method-assign]  # noqa: SLF001
        self._room = _Room()

    def take_at_most(self, size: int) -> None:
        """Let the next poll end with the record that brings it to so many bytes."""
        self._room.left = size

    def _append(self, drained: Any, part: Any, most: int, update_offsets: Any) -> int:
        part.room = self._room
        taken: int = Fetcher._append(self._fetcher, drained, part, most, update_offsets)  # type: ignore[no-untyped-call]  # noqa: SLF001
        # Full by bytes is as full as by records.
        return taken if self._room.left > 0 else most

    def _poll_once(self, timer: Any, *asked: Any, **named: Any) -> Any:
        """Poll as the client does, and rest where it would ask again at once.

        While a heartbeat is due, the client waits for nothing. With a broker that does not answer
        it would go round as fast as it can, and hang something on its open request each time: a
        core and megabytes a second until the request times out (kafka-python 3.0.12).
        """
        began = time.monotonic()
        records = super()._poll_once(timer, *asked, **named)  # type: ignore[no-untyped-call]
        if not records and time.monotonic() - began < _QUICK_S:
            time.sleep(min(_REST_S, max(0.0, timer.timeout_ms / 1000)))
        return records

    def resume(self, *partitions: Any) -> None:
        """Go on fetching from paused partitions, from where their records were last returned.

        What the client had read of them before the pause it keeps aside, looks at no more while
        another partition was the last to be read, and fetches nothing meanwhile: such a partition
        would stay silent for ever (kafka-python 3.0.12). So it is made to read that again.
        """
        super().resume(*partitions)  # type: ignore[no-untyped-call]
        aside = getattr(self._fetcher, "_paused_partition_records", {})
        for partition in partitions:
            if partition in aside:
                aside.pop(partition).drain()


class _Room:
    """How many bytes a poll may still take."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: float = inf


class _Name(str):
    """A name whose bytes, which the client counts, can be told."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = _ESCAPED) -> bytes:
        return super().encode(encoding, errors)


class _Bytes(bytearray):
    """Bytes any part of which can be shown as text."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Bytes(found) if isinstance(place, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = _ESCAPED) -> str:
        return _Name(super().decode(encoding, errors))


class _Batch(DefaultRecordBatch):
    __slots__ = ()

    def _read_msg(self, *reader: Any) -> Any:
        try:
            return super()._read_msg(*reader)  # type: ignore[no-untyped-call]
        except UnicodeDecodeError:
            # Nothing was taken off the buffer yet.
            self._buffer = _Bytes(self._buffer)
            return super()._read_msg(*reader)  # type: ignore[no-untyped-call]


class _Batches:
    """The batches of a fetch, in order."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch:
            batch.__class__ = _Batch
        return batch


class _PartitionRecords(Fetcher.PartitionRecords):
    room = _Room()
    _next_inline_exception: Exception | None

    def take(self, n: int | None = None) -> list[Any]:
        """Take up to `n` records as the client does, while there is room.

        The client itself knows limits for what it fetches alone, and those of compressed bytes.
        """
        self._maybe_raise_next_inline_exception()  # type: ignore[no-untyped-call]
        records: list[Any] = []
        left = self.room.left
        try:
            for record in islice(self.record_iterator, n):
                records.append(record)
                # Each is -1 of what a record is without.
                left -= record.serialized_value_size + record.serialized_key_size
                left -= record.serialized_header_size
                if left <= 0:
                    break
        except Exception as error:
            if not records:
                raise
            # The next call raises it.
            self._next_inline_exception = error
        finally:
            self.room.left = left
        return records

    def _unpack_records(self, partition: Any, records: Any, *deserializers: Any) -> Any:
        batches = _Batches(records)
        return super()._unpack_records(partition, batches, *deserializers)  # type: ignore[no-untyped-call]
