"""The records of topics as a data source of Spark: one row each, without values.

Spark's own Kafka source needs jars that not every registry has. Workers import this module, so it
imports only PySpark, PyArrow and the dependencies of `range_reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.range_reader import OffsetRange, RangeReader, RecordRange
from shieldtx.domain.external_ids import event_id_of, uuid_of

NAME: Final = "shieldtx_records"
DELETED: Final = "deleted"
"""The `problem` of a row that is not a record: records before its offset were deleted meanwhile."""

COLUMNS: Final = (
    # The logical topic.
    ("topic", "string", pa.string()),
    ("kind", "string", pa.string()),
    ("partition", "int", pa.int32()),
    ("offset", "bigint", pa.int64()),
    # By the clock of the sender, or of the broker, depending on the topic's settings.
    ("sent_at", "timestamp", pa.timestamp("us", tz="UTC")),
    ("event_id", "string", pa.string()),
    ("source", "string", pa.string()),
    ("key", "string", pa.string()),
    ("event_type", "string", pa.string()),
    ("causation_id", "string", pa.string()),
    # As text: few of the values are parsed.
    ("written_at", "string", pa.string()),
    # Why the record is not of an event; NULL: it is of an event.
    ("problem", "string", pa.string()),
)
SCHEMA: Final = ", ".join(f"{name} {type_}" for name, type_, _ in COLUMNS)
PART_OFFSETS: Final = 200_000
"""The offsets of a task. A part takes some seconds, and a failed part is read again as a whole."""

_ARROW: Final = pa.schema([(name, type_) for name, _, type_ in COLUMNS])
_OWN: Final = frozenset(
    {
        "ce_id",
        "ce_source",
        "ce_type",
        "ce_txkind",
        "ce_time",
        "ce_causationid",
        "ce_causationsource",
    }
)
_MAX_NAME_BYTES: Final = 256
_MAX_KEY_BYTES: Final = 1_024
# In the year 9999: foreign clocks may count in other units.
_LATEST_MS: Final = 253_402_214_400_000
_Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A topic, by its names in the services and at the broker."""

    topic: str
    """The logical topic."""
    kind: str
    name: str
    """The name at the broker."""


@dataclass(frozen=True, slots=True)
class Part(InputPartition):
    """The input of one task: the ranges of several partitions, or a piece of one."""

    ranges: tuple[OffsetRange, ...]


class Unfit(Exception):
    """A record that is not of an event, with the reason."""


def frame_of(
    spark: SparkSession,
    connection: KafkaConnection,
    logs: Iterable[Log],
    ranges: Iterable[OffsetRange],
    *,
    part: int = PART_OFFSETS,
) -> DataFrame:
    """Return the records of the ranges, in tasks of `part` offsets; each action reads them again.

    The credentials are part of the data source's code, which Spark ships to its workers. As options
    they would appear in plans and logs.
    """
    named = {log.name: log for log in logs}
    parts = parts_of(ranges, part)

    # Defined inside the function, so that it is shipped with its closure.
    class TopicRecords(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  Spark's signature
            return TopicReader(connection, named, parts)

    spark.dataSource.register(TopicRecords)
    return spark.read.format(NAME).load()


class TopicReader(DataSourceReader):
    """Reads parts of topics, in any number of tasks at once."""

    def __init__(
        self, connection: KafkaConnection, logs: dict[str, Log], parts: Sequence[Part]
    ) -> None:
        self._connection = connection
        self._logs = logs
        self._parts = list(parts)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of all tasks, which were fixed before the run."""
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a part; raises BrokerError if it cannot be read completely."""
        if not isinstance(partition, Part):
            return  # Spark's own partition, if there is nothing to read.
        for record_range in RangeReader(self._connection).read(partition.ranges):
            yield batch_of(record_range, self._logs[record_range.range.topic])


def parts_of(ranges: Iterable[OffsetRange], size: int) -> tuple[Part, ...]:
    """Split large ranges and combine small ones; ranges without offsets are left out."""
    parts: list[Part] = []
    gathered: list[OffsetRange] = []
    total = 0
    for piece in (piece for range_ in ranges for piece in range_.cut(size)):
        if total + piece.size > size:
            parts.append(Part(tuple(gathered)))
            gathered, total = [], 0
        gathered.append(piece)
        total += piece.size
    return (*parts, Part(tuple(gathered))) if gathered else tuple(parts)


def batch_of(record_range: RecordRange, log: Log) -> pa.RecordBatch:
    """Return a range of records as an Arrow batch for Spark."""
    partition = record_range.range.partition
    rows = [_row(record, log) for record in record_range.records]
    if record_range.deleted_to is not None:
        rows.append(_unfit(log, partition, record_range.deleted_to, None, DELETED))
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)],
        schema=_ARROW,
    )


def _row(record: Any, log: Log) -> _Row:
    milliseconds = record.timestamp
    sent_at = milliseconds * 1000 if 0 <= milliseconds <= _LATEST_MS else None
    place = (record.partition, record.offset, sent_at)
    try:
        own = _own_headers(record.headers, log.kind.encode())
        return (
            log.topic,
            log.kind,
            *place,
            _id(own, "ce_source", "ce_id"),
            _text(own, "ce_source"),
            _key(record.key),
            _text(own, "ce_type"),
            _id(own, "ce_causationsource", "ce_causationid") if "ce_causationid" in own else None,
            _text(own, "ce_time"),
            None,
        )
    except Unfit as problem:
        return _unfit(log, *place, str(problem))


def _unfit(log: Log, partition: int, offset: int, sent_at: int | None, problem: str) -> _Row:
    nothing = (None,) * 6
    return (log.topic, log.kind, partition, offset, sent_at, *nothing, problem)


def _own_headers(
    headers: Sequence[tuple[str, bytes | None]], kind: bytes
) -> dict[str, bytes | None]:
    own = dict(headers)
    if len(own) < len(headers):
        names = [name for name, _ in headers if name in _OWN]
        if len(names) > len(set(names)):
            raise Unfit("a header of shieldtx occurs twice")
    # A producer other than shieldtx leaves it out.
    if own.get("ce_txkind", kind) != kind:
        raise Unfit("ce_txkind does not fit the topic")
    if (own.get("content-type") or b"").startswith(b"application/cloudevents"):
        raise Unfit("it is in structured mode, which only other producers write")
    return own


def _text(own: dict[str, bytes | None], name: str) -> str:
    value = own.get(name)
    if not value:
        raise Unfit(f"{name} is missing")
    if len(value) > _MAX_NAME_BYTES:
        raise Unfit(f"{name} is too long")
    return _decoded(value, name)


def _key(key: bytes | None) -> str | None:
    if key is None:
        return None
    if len(key) > _MAX_KEY_BYTES:
        raise Unfit("the key is too long")
    return _decoded(key, "the key")


def _decoded(value: bytes, what: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Unfit(f"{what} is not UTF-8") from None
    if "\x00" in text:
        raise Unfit(f"{what} holds a NUL character")
    return text


def _id(own: dict[str, bytes | None], by: str, name: str) -> str:
    """Return the id of an event in PostgreSQL's notation, as consumers store it."""
    text = _decoded(own.get(name) or b"", name)
    if uuid_of(text) is not None:
        return text
    if not text:
        raise Unfit(f"{name} is missing")
    if by not in own:
        raise Unfit(f"{name} is not a UUID, and {by} is missing")
    return str(event_id_of(_text(own, by), text))
