"""Rounds: records passed to kafka-python together, at most one batch per partition.

The client's own API creates a future for each record and takes several locks for it: more than half
of a record's cost. The fast way builds each partition's batch with the client's own builder, and
passes the whole batch. It needs private parts of the client, so it is used only if these are as
expected, and `KafkaProducer.send` otherwise; both have the same result.
"""

from __future__ import annotations

import inspect
import time
from typing import Any, Final

from kafka import KafkaProducer, TopicPartition
from kafka.errors import IllegalStateError, KafkaError
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.record.memory_records import MemoryRecordsBuilder

from shieldtx.ports.broker import Record

# How long to wait for one partition before checking the deadline again.
_POLL_S: Final = 0.25
_METADATA_S: Final = 1.0

# Maximum overhead of a batch, and of a record in addition to its key, value and headers: lengths,
# time, offset and attributes of Kafka's record format 2.
_BATCH_OVERHEAD: Final = 61
_RECORD_OVERHEAD: Final = 36
_HEADER_OVERHEAD: Final = 10

_RECORD_FORMAT: Final = 2


class _Batch(ProducerBatch):
    """A batch that is never split.

    The client would split a batch that a broker finds too large, and resolve futures that do not
    exist here. The publisher finds the failing record.
    """

    @property
    def record_count(self) -> int:
        return 1


class _RecordResult:
    """The outcome of one record, from the result of its batch."""

    __slots__ = ("_future", "_place")

    def __init__(self, future: Any, place: int) -> None:
        self._future = future
        self._place = place

    @property
    def is_done(self) -> bool:
        return bool(self._future.is_done)

    @property
    def exception(self) -> BaseException | None:
        _, _, error_of = self._future.value
        error: BaseException | None = None if error_of is None else error_of(self._place)
        return error

    @property
    def offset(self) -> int:
        first, _, _ = self._future.value
        return -1 if first < 0 else int(first) + self._place


class _SingleRecordResult:
    """The outcome of one record, from the client's future."""

    __slots__ = ("_future",)

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def is_done(self) -> bool:
        return bool(self._future.is_done)

    @property
    def exception(self) -> BaseException | None:
        error: BaseException | None = self._future.exception
        return error

    @property
    def offset(self) -> int:
        return int(self._future.value.offset)


class BatchedProduceRound:
    """Builds each partition's batch itself (the protocol ProduceRound)."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._accumulator = producer._accumulator  # noqa: SLF001  takes whole batches
        config = self._accumulator.config
        self._format = (_RECORD_FORMAT, config["compression_attrs"], config["batch_size"])
        self._builders: dict[tuple[str, int], Any] = {}
        self._ends: list[tuple[tuple[str, int], int]] = []
        self._now = int(time.time() * 1000)

    def take(self, record: Record, partition: int) -> bool:
        """Add a record to its partition's batch, if there is room."""
        place = (record.topic, partition)
        builder = self._builders.get(place)
        if builder is None:
            if not self._producer.knows(record.topic):
                # The client has to know the topic, or the batch would wait for ever.
                self._producer.partition_count(record.topic, within=_METADATA_S)
            builder = self._builders[place] = MemoryRecordsBuilder(*self._format)  # type: ignore[no-untyped-call]
        taken = builder.append(self._now, record.key, record.value, record.headers)
        if taken is None:
            return False
        self._ends.append((place, taken.offset))
        return True

    def send(self, deadline: float) -> list[Any]:
        """Pass all batches to the client, wait for them, and return the records' results."""
        futures = {place: self._hand_over(place) for place in self._builders}
        self._producer._sender.wakeup()  # noqa: SLF001
        for future in futures.values():
            future.wait(max(0.0, deadline - time.monotonic()))
        return [_RecordResult(futures[place], offset) for place, offset in self._ends]

    def _hand_over(self, place: tuple[str, int]) -> Any:
        accumulator = self._accumulator
        partition = TopicPartition(*place)
        batch = _Batch(partition, self._builders[place])  # type: ignore[no-untyped-call]
        with accumulator._tp_lock(partition):  # noqa: SLF001
            if accumulator._closed:  # noqa: SLF001
                raise IllegalStateError("the producer is closed")
            accumulator._batches[partition].append(batch)  # noqa: SLF001
            accumulator._incomplete.add(batch)  # noqa: SLF001
        return batch.produce_future


class SingleProduceRound:
    """Passes each record to the client (the protocol ProduceRound)."""

    def __init__(self, producer: Any, batch_bytes: int) -> None:
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._room: dict[tuple[str, int], int] = {}
        self._futures: list[Any] = []

    def take(self, record: Record, partition: int) -> bool:
        """Pass a record to the client, if there is certainly room in its partition's batch."""
        place = (record.topic, partition)
        left = self._room.get(place, self._batch_bytes - _BATCH_OVERHEAD) - _size_of(record)
        # A record larger than a batch gets its own batch.
        if left < 0 and place in self._room:
            return False
        self._futures.append(
            self._producer.send(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=partition,
            )
        )
        self._room[place] = left
        return True

    def send(self, deadline: float) -> list[Any]:
        """The deadline has passed, or a batch was split because it was too large."""
        done, futures = 0, self._futures
        while True:
            while done < len(futures) and futures[done].is_done:
                done += 1
            left = deadline - time.monotonic()
            if done == len(futures) or left <= 0:
                return [_SingleRecordResult(future) for future in futures]
            try:
                self._producer.flush(timeout=min(left, _POLL_S))
            except KafkaError:
                # Time is up, or a batch was divided because it was too large.
                continue


def _size_of(record: Record) -> int:
    size = len(record.value) + len(record.key or b"") + _RECORD_OVERHEAD
    for name, value in record.headers:
        size += len(name) + len(value) + _HEADER_OVERHEAD
    return size


def _is_as_known() -> bool:
    """Whether the private parts that the fast way needs exist."""

    def parameters(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    try:
        accumulator = RecordAccumulator(batch_size=1)  # type: ignore[no-untyped-call]
        return (
            parameters(ProducerBatch.__init__) == ["self", "tp", "records", "now"]
            and parameters(MemoryRecordsBuilder.__init__)[:4]
            == ["self", "magic", "compression_type", "batch_size"]
            and parameters(MemoryRecordsBuilder.append)
            == ["self", "timestamp", "key", "value", "headers"]
            and isinstance(ProducerBatch.record_count, property)
            and {"compression_attrs", "batch_size"} <= set(accumulator.config)
            and accumulator._batches[TopicPartition("t", 0)] is not None  # noqa: SLF001
            and accumulator._closed is False  # noqa: SLF001
            and callable(accumulator._incomplete.add)  # noqa: SLF001
            and callable(accumulator._tp_lock)  # noqa: SLF001
            and "_accumulator" in inspect.getsource(KafkaProducer.send)
            and "_sender.wakeup()" in inspect.getsource(KafkaProducer.send)
        )
    except Exception:  # noqa: BLE001  any error means another version
        return False


TAKES_WHOLE_BATCHES: Final = _is_as_known()
"""Whether this version of kafka-python supports the fast way."""
