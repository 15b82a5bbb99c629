"""The time since which topics are complete: older events cannot be missing in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.brokers.kafka.topic_offsets import TopicOffsets

from .driver_frames import NUMBER, TEXT, TIME, frame_of
from .kafka_data_source import DELETED, Log

EVERYTHING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of completeness of a partition that has never lost a record."""
WHOLE: Final = -1
"""Stands for all partitions of a topic together: all of them are complete since the time."""
HORIZONS: Final = {
    "topic": TEXT,
    "kind": TEXT,
    "partition": NUMBER,
    "partitions": NUMBER,
    "complete_since": TIME,
    "as_many_since": TIME,
}
_TOPIC_KIND_PARTITION: Final = ("topic", "kind", "partition")

TopicKind = tuple[str, str]
"""Logical topic and kind."""
TopicKindPartition = tuple[str, str, int]
"""Logical topic, kind, partition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The contents of the topics, in numbers."""

    first_sent: Mapping[TopicKindPartition, datetime]
    """When the first record of these services after all deleted records was sent."""
    lost: frozenset[TopicKindPartition]
    """Partitions whose oldest records were deleted during the read."""
    unfit: Mapping[tuple[str, str, str], int]
    """By topic, kind and problem: records that are not events."""
    foreign: int
    """Events of others."""
    writers: Mapping[TopicKind, frozenset[str]]
    """The services of the run that have a record in the topic."""


def is_of(names: Collection[str]) -> Column:
    """Return whether a row is the record of an event of these services."""
    is_theirs = F.col("problem").isNull() & F.col("source").isin(sorted(names))
    return F.coalesce(is_theirs, F.lit(col=False))


def contents_of(records: DataFrame, names: Collection[str]) -> Contents:
    """Return the contents by one pass over all records, and one over partitions with losses."""
    is_ours = is_of(names)
    rows = (
        records.groupBy(*_TOPIC_KIND_PARTITION, is_ours.alias("ours"), "problem")
        .agg(F.count(F.lit(1)).alias("number"), _first_sent(), _sources(is_ours))
        .collect()
    )
    lost = frozenset(_partition_of(row) for row in rows if row.problem == DELETED)
    ours = [row for row in rows if row.ours]
    writers: dict[TopicKind, frozenset[str]] = {}
    for row in ours:
        place = row.topic, row.kind
        writers[place] = writers.get(place, frozenset()).union(row.sources)
    if lost:
        ours = [row for row in ours if _partition_of(row) not in lost]
        ours += _first_behind_losses(records.where(is_ours | (F.col("problem") == DELETED)))
    unfit: dict[tuple[str, str, str], int] = {}
    for row in rows:
        if row.problem not in (None, DELETED):
            key = (row.topic, row.kind, row.problem)
            unfit[key] = unfit.get(key, 0) + row.number
    return Contents(
        first_sent={
            _partition_of(row): row.first_sent.astimezone(UTC)
            for row in ours
            if row.first_sent is not None
        },
        lost=lost,
        unfit=unfit,
        foreign=sum(row.number for row in rows if not row.ours and row.problem is None),
        writers=writers,
    )


def complete_since(
    contents: Contents,
    logs: Iterable[Log],
    offsets: Mapping[str, TopicOffsets],
    since: datetime | None,
) -> dict[TopicKindPartition, datetime | None]:
    """Return for each partition since when no record of it is missing; None: unknown.

    If a partition has lost its beginning, that is the time at which the first remaining record of
    these services was sent: no record appended after that one has been lost. Records of others do
    not count, because their clocks may be wrong. A partition without its beginning and without
    records of these services may have lost any record up to now.
    """
    found: dict[TopicKindPartition, datetime | None] = {}
    for log in logs:
        of_topic = offsets[log.name]
        for range_ in of_topic.ranges:
            partition = (log.topic, log.kind, range_.partition)
            if partition in contents.lost:
                found[partition] = contents.first_sent.get(partition)
            elif range_.partition in of_topic.later:
                found[partition] = since
            elif range_.start == 0:
                found[partition] = EVERYTHING
            else:
                found[partition] = contents.first_sent.get(partition)
    return found


def as_many_since(
    contents: Contents,
    logs: Iterable[Log],
    offsets: Mapping[str, TopicOffsets],
    since: datetime | None,
) -> dict[TopicKind, datetime | None]:
    """Return for each topic since when it certainly has all its partitions; None: unknown.

    When a partition is added, keys change their partitions: to the new one, or between old ones.
    Earlier records of a key stay in its earlier partition. When the last partition was added is not
    known. The partition certainly existed when its first record was sent, and at the time from
    which it is read, if it has earlier records.
    """
    found: dict[TopicKind, datetime | None] = {}
    for log in logs:
        of_topic = offsets[log.name]
        last = max(range_.partition for range_ in of_topic.ranges)
        first = contents.first_sent.get((log.topic, log.kind, last))
        found[log.topic, log.kind] = since if last in of_topic.later else first
    return found


def horizons(
    spark: SparkSession,
    since: Mapping[TopicKindPartition, datetime | None],
    as_many: Mapping[TopicKind, datetime | None],
) -> DataFrame:
    """Return since when partitions are complete, and whole topics (the latest of their partitions).

    Each row also has the time since which the topic has had all its partitions.
    """
    topics = _by_topic(since)
    rows = [
        (*place, len(topics[place[:2]]), when, as_many[place[:2]]) for place, when in since.items()
    ]
    for (topic, kind), times in topics.items():
        known = [when for when in times if when is not None]
        latest = max(known) if len(known) == len(times) else None
        rows.append((topic, kind, WHOLE, len(times), latest, as_many[topic, kind]))
    return frame_of(spark, HORIZONS, rows)


def unjudged(since: Mapping[TopicKindPartition, datetime | None]) -> Iterable[str]:
    """Yield sentences for topics without a partition of known completeness."""
    for (topic, kind), times in _by_topic(since).items():
        if not any(times):
            yield (
                f"{topic} ({kind}) has lost its beginning and holds no record of these services: "
                "what may be missing in it could not be judged"
            )


def _first_sent() -> Column:
    has_time = F.col("sent_at").isNotNull()
    return F.min_by("sent_at", F.when(has_time, F.col("offset"))).alias("first_sent")


def _sources(is_ours: Column) -> Column:
    # Others may use any number of sources, of any length.
    return F.collect_set(F.when(is_ours, F.col("source"))).alias("sources")


def _first_behind_losses(records: DataFrame) -> list[Row]:
    is_loss = F.col("problem") == DELETED
    losses = records.where(is_loss).groupBy(*_TOPIC_KIND_PARTITION)
    lost = losses.agg(F.max("offset").alias("lost_to"))
    return (
        records.where(F.col("problem").isNull())
        .join(F.broadcast(lost), on=list(_TOPIC_KIND_PARTITION), how="inner")
        .where(F.col("offset") >= F.col("lost_to"))
        .groupBy(*_TOPIC_KIND_PARTITION)
        .agg(_first_sent())
        .collect()
    )


def _by_topic(
    since: Mapping[TopicKindPartition, datetime | None],
) -> dict[tuple[str, str], list[datetime | None]]:
    topics: dict[tuple[str, str], list[datetime | None]] = {}
    for (topic, kind, _), when in since.items():
        topics.setdefault((topic, kind), []).append(when)
    return topics


def _partition_of(row: Row) -> TopicKindPartition:
    return (row.topic, row.kind, row.partition)
