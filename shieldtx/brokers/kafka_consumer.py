"""kafka-python's consumer, mended where it would stop for ever (kafka-python 3.0.12).

It does so before a record whose headers have names that are no UTF-8, though Kafka takes any bytes
as a name, and at a partition that was paused and is resumed.
"""

from __future__ import annotations

from typing import Any, Final

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch

_ESCAPED: Final = "surrogateescape"


class Consumer(KafkaConsumer):
    """A consumer that shows bytes of a name that are no UTF-8 as lone surrogates."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._fetcher.PartitionRecords = _PartitionRecords

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
    def _unpack_records(self, partition: Any, records: Any, *deserializers: Any) -> Any:
        batches = _Batches(records)
        return super()._unpack_records(partition, batches, *deserializers)  # type: ignore[no-untyped-call]
