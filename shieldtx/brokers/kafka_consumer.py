"""kafka-python's consumer, faster, and for records whose headers have names that are no UTF-8.

Its own cannot read those and would stop before such a record for ever (kafka-python 3.0.12), though
Kafka takes any bytes as a name. It also makes a call for each length in a record, of which one with
ten headers has 26, and counts the bytes of the headers: most of what a poll costs. So records in
their usual form are read here, each in one go; the others, broken ones too, are left to the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint

_ESCAPED: Final = "surrogateescape"
_LONG_OR_NEGATIVE: Final = 0x81
# The fast way needs parts of the client that are not public.
_IS_AS_KNOWN: Final = {"_buffer", "_pos", "_num_records", "_next_record_index"} <= set(
    DefaultRecordBatch.__slots__
)
# UnicodeDecodeError is a ValueError.
_UNUSUAL: Final = (ValueError, IndexError)


class Consumer(KafkaConsumer):
    """A consumer that shows bytes of a name that are no UTF-8 as lone surrogates."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._fetcher.PartitionRecords = PartitionRecords


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

    def __iter__(self) -> Iterator[Any]:
        super().__iter__()  # type: ignore[no-untyped-call]
        return self._records() if _IS_AS_KNOWN else self

    def _records(self) -> Iterator[Any]:
        """Yield the records in their usual form, and from the first unusual one on the client's."""
        read = _Reader(bytes(self._buffer)).read
        kind, first, base = self.timestamp_type, self.first_timestamp, self.base_offset
        while self._next_record_index < self._num_records:
            try:
                size, delta, step, key, value, headers, end = read(self._pos)
            except _UNUSUAL:
                break
            self._pos = end
            self._next_record_index += 1
            time = self.max_timestamp if kind == self.LOG_APPEND_TIME else first + delta
            yield _Record(size, base + step, time, kind, key, value, headers)
        # It also finds out whether anything is left behind the last record.
        yield from iter(partial(next, self, None), None)

    def _read_msg(self, *reader: Any) -> Any:
        try:
            return super()._read_msg(*reader)  # type: ignore[no-untyped-call]
        except UnicodeDecodeError:
            # Nothing was taken off the buffer yet.
            self._buffer = _Bytes(self._buffer)
            return super()._read_msg(*reader)  # type: ignore[no-untyped-call]


_Header = tuple[str, bytes | None]
_Fields = tuple[int, int, int, bytes | None, bytes | None, "_Headers", int]
"""Size, time and offset beyond the batch's, key, value, headers; and the end of the record."""


class _Headers(tuple[_Header, ...]):
    """Headers that look like none to the client, which would count their bytes."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


class _Record(NamedTuple):
    """What the client asks of a record."""

    size_in_bytes: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: _Headers
    checksum: None = None

    def validate_crc(self) -> bool:
        """Leave it to the batch, which has the checksum."""
        return True


class _Reader:
    """Reads the records of a batch that are in their usual form.

    Most of a service's records begin with the same headers: those that the first two of a batch
    begin with are read once.
    """

    __slots__ = ("_buffer", "_first", "_same", "_same_bytes")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._first: int | None = None
        self._same: list[_Header] | None = None
        self._same_bytes = b""

    def read(self, place: int) -> _Fields:
        """Read the record at a place; raises one of _UNUSUAL for one that is the client's."""
        buffer = self._buffer
        size, place = decode_varint(buffer, place)  # type: ignore[no-untyped-call]
        end = place + size
        if buffer[place]:
            raise ValueError("it has attributes, which mean nothing yet")
        delta, place = decode_varint(buffer, place + 1)  # type: ignore[no-untyped-call]
        step, place = decode_varint(buffer, place)  # type: ignore[no-untyped-call]
        key, place = _part(buffer, place)
        value, place = _part(buffer, place)
        count, place = decode_varint(buffer, place)  # type: ignore[no-untyped-call]
        if self._same is None:
            self._learn(place, count)
        headers: list[_Header] = []
        if self._same and count >= len(self._same) and buffer.startswith(self._same_bytes, place):
            headers += self._same
            place += len(self._same_bytes)
        for _ in range(count - len(headers)):
            header, place = _header(buffer, place)
            headers.append(header)
        if place != end or count < 0:
            raise ValueError("its parts are not as long as it is")
        return size, delta, step, key, value, _Headers(headers), end

    def _learn(self, place: int, count: int) -> None:
        """Compare the headers of the second record, from its place on, with those of the first."""
        if self._first is None:
            self._first = place
            return
        self._same, begin, other = [], self._first, place
        while len(self._same) < count:
            header, end = _header(self._buffer, begin)
            if not self._buffer.startswith(self._buffer[begin:end], other):
                break
            self._same.append(header)
            begin, other = end, other + end - begin
        self._same_bytes = self._buffer[place:other]


def _header(buffer: bytes, place: int) -> tuple[_Header, int]:
    """Read the header at a place, and find its end."""
    length = buffer[place]
    # The length of most names and values is one byte, twice the length itself.
    if length & _LONG_OR_NEGATIVE:
        raise ValueError("its name has more than 63 bytes, or less than none")
    behind = place + 1 + (length >> 1)
    name = buffer[place + 1 : behind].decode()
    length = buffer[behind]
    if length & _LONG_OR_NEGATIVE:
        value, end = _part(buffer, behind)
        return (name, value), end
    end = behind + 1 + (length >> 1)
    return (name, buffer[behind + 1 : end]), end


def _part(buffer: bytes, place: int) -> tuple[bytes | None, int]:
    """Read what has its length in front of it, and find its end."""
    length, place = decode_varint(buffer, place)  # type: ignore[no-untyped-call]
    if length < 0:
        return None, place
    end = place + length
    return buffer[place:end], end


class _Batches:
    """The batches of a fetch, in order."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if type(batch) is DefaultRecordBatch:
            batch.__class__ = _Batch
        return batch


class PartitionRecords(Fetcher.PartitionRecords):
    """The records of a partition that one answer of a broker brought."""

    def _unpack_records(self, partition: Any, records: Any, *deserializers: Any) -> Any:
        batches = _Batches(records)
        return super()._unpack_records(partition, batches, *deserializers)  # type: ignore[no-untyped-call]
