"""kafka-python's consumer, repaired where it would stop for ever (kafka-python 3.0.12).

It stops before a record whose header names are not UTF-8, though Kafka accepts any bytes as a name,
and at a partition that was paused and resumed. It also spins while a heartbeat waits for its
response.
"""

from __future__ import annotations

import time
from itertools import islice
from math import inf
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.errors import FencedInstanceIdError
from kafka.record.default_records import DefaultRecordBatch

_ESCAPED: Final = "surrogateescape"
_QUICK_S: Final = 0.005
_REST_S: Final = 0.01


class Consumer(KafkaConsumer):
    """A consumer that represents bytes of a name that are not UTF-8 as lone surrogates."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._fetcher.PartitionRecords = _PartitionRecords
        self._fetcher._append = self._append  # type: ignore[method-assign]  # noqa: SLF001
        self._room = _Room()
        self.is_fenced = False
        """Whether another client has joined with this one's instance id (static membership)."""
        self._handle = self._coordinator._handle_heartbeat_response  # noqa: SLF001
        self._coordinator._handle_heartbeat_response = self._note_fenced  # type: ignore[method-assign]  # noqa: SLF001

    def _note_fenced(self, response: Any, *sent: Any) -> Any:
        """Handle a heartbeat's response as the client does, and remember that it is fenced.

        The client would end its heartbeats, and read on as if it were a member (kafka-python
        3.0.12).
        """
        try:
            return self._handle(response, *sent)  # type: ignore[no-untyped-call]
        except FencedInstanceIdError:
            self.is_fenced = True
            raise

    def take_at_most(self, size: int) -> None:
        """Let the next poll end with the record that brings it to `size` bytes."""
        self._room.left = size

    def _append(self, drained: Any, part: Any, most: int, update_offsets: Any) -> int:
        part.room = self._room
        taken: int = Fetcher._append(self._fetcher, drained, part, most, update_offsets)  # type: ignore[no-untyped-call]  # noqa: SLF001
        # Full by bytes counts as full by records.
        return taken if self._room.left > 0 else most

    def _poll_once(self, timer: Any, *asked: Any, **named: Any) -> Any:
        """Poll as the client does, and sleep where it would poll again at once.

        While a heartbeat is due, the client does not wait. If the broker does not respond, the
        client would spin and add a callback to its open request each time: a core and megabytes per
        second until the request times out (kafka-python 3.0.12).
        """
        began = time.monotonic()
        records = super()._poll_once(timer, *asked, **named)  # type: ignore[no-untyped-call]
        if not records and time.monotonic() - began < _QUICK_S:
            time.sleep(min(_REST_S, max(0.0, timer.timeout_ms / 1000)))
        return records

    def resume(self, *partitions: Any) -> None:
        """Resume paused partitions after the last record that was returned of each.

        The client stores the records that it had fetched before the pause. If it read another
        partition last, it ignores these records and fetches nothing: the partition would be silent
        for ever (kafka-python 3.0.12). So they are dropped and fetched again.
        """
        super().resume(*partitions)  # type: ignore[no-untyped-call]
        paused = getattr(self._fetcher, "_paused_partition_records", {})
        for partition in partitions:
            if partition in paused:
                paused.pop(partition).drain()


class _Room:
    """The remaining bytes of a poll."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: float = inf


class _Name(str):
    """A name that encodes to its original bytes, which the client counts."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = _ESCAPED) -> bytes:
        return super().encode(encoding, errors)


class _Bytes(bytearray):
    """Bytes of which every part decodes to text."""

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
            # The failed call has consumed nothing of the buffer.
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
        """Return up to `n` records as the client does, while there is room.

        The client limits only its fetches, and counts compressed bytes.
        """
        self._maybe_raise_next_inline_exception()  # type: ignore[no-untyped-call]
        records: list[Any] = []
        left = self.room.left
        try:
            for record in islice(self.record_iterator, n):
                records.append(record)
                # Each size is -1 where the part is missing.
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
