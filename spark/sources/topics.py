"""Reads the topics of a run, once, and reports which of them can be judged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.brokers.kafka.connection import KafkaConnection
from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader, TopicOffsets
from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.errors import BrokerError, BrokerUnavailable, ConfigurationError, TopicMissing
from shieldtx.reconcile.observed import ObservedTopic, ObservedTopics, topics_replaced
from shieldtx.reconcile.request import BrokerAccess, ReconcileRequest

from .kafka_data_source import Log, frame_of
from .topic_completeness import (
    Contents,
    TopicKindPartition,
    as_many_since,
    complete_since,
    contents_of,
    horizons,
    is_of,
    unjudged,
)
from .topics_without_rows import topics_without_rows

_SHOWN_SOURCES: Final = 10
_SHOWN_CHARACTERS: Final = 80
# The end of a Python worker's traceback.
_BROKER_ERROR: Final = re.compile(r"shieldtx\.errors\.Broker(?:Error|Unavailable): (.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The result of reading the topics."""

    records: DataFrame | None
    """The records of the services' events only; None if no topic could be read."""
    horizons: DataFrame
    """The time since which no record is missing: see `topic_completeness`."""
    left_out: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    observed: ObservedTopics = field(default_factory=ObservedTopics)
    """The topics, the offsets up to which they were read, and the services that wrote on them, by
    their records. For topics that earlier runs have read and this run could not read, the
    observations of those runs."""


def observed_again(request: ReconcileRequest) -> tuple[ObservedTopics, tuple[str, ...]]:
    """Return the current topics of the earlier run, and why they may have lost records since.

    If the broker gives no information, they may have.
    """
    if request.broker is None or request.observed is None:
        return ObservedTopics(), ()
    names = {service.name for service in request.services}
    earlier = request.observed.topics.of_services(names)
    if not earlier.topics:
        return ObservedTopics(), ()
    try:
        with TopicOffsetReader(connection_of(request.broker)) as asked:
            found = asked.ends(sorted(earlier.topics))
            now = ObservedTopics(
                cluster=asked.cluster_id(),
                topics={
                    name: None
                    if each is None
                    else ObservedTopic(topic_id=each.topic_id, ends=each.ends)
                    for name, each in found.items()
                },
            )
    except (BrokerError, ConfigurationError) as error:
        problem = f"whether the topics are those of the last good run could not be asked: {error}"
        return ObservedTopics(), (problem,)
    return now, tuple(topics_replaced(earlier, now))


def read(
    spark: SparkSession, request: ReconcileRequest, sent: Collection[tuple[str, TxKind]]
) -> Reading:
    """Return the records of these logical topics and kinds, and of some topics without rows.

    For topics without rows, see `topics_without_rows`. No event of a row can be missing in them, so
    their completeness does not matter.

    Call this after the clocks were read: then an event that settled before the watermark has its
    record before the end offsets that are read here. Outboxes may be read before or after: an event
    that is in only one of the two for that reason is younger than the watermark.

    A broker error does not end the run, but is added to `obstacles`.
    """
    assert request.broker is not None  # noqa: S101  otherwise there are no topics to read
    prefix, since = request.broker.topic_prefix, read_since(request)
    logs = [
        Log(topic=topic, kind=kind.value, name=physical_topic(prefix, topic, kind))
        for topic, kind in sorted(set(sent))
    ]
    asked = _Asked(observed=request.topics_before)
    obstacles: tuple[str, ...] = ()
    try:
        connection = connection_of(request.broker)
        asked = _asked(connection, request, logs)
        offsets, known, obstacles = asked.offsets, asked.logs, asked.obstacles
        ranges = [range_ for log in known for range_ in offsets[log.name].ranges]
        # Read once: judged and counted records must be the same, and topics grow meanwhile.
        records = _read_once(frame_of(spark, connection, known, ranges)) if known else None
    except (BrokerError, ConfigurationError) as error:
        obstacles = (*obstacles, f"the topics could not be read: {error}")
        records = None
    if records is None:
        return Reading(
            records=None,
            horizons=horizons(spark, {}, {}),
            obstacles=obstacles,
            observed=asked.observed,
        )
    names = {service.name for service in request.services}
    contents = contents_of(records, names)
    whole = complete_since(contents, known, offsets, since)
    return Reading(
        records=records.where(is_of(names)),
        horizons=horizons(spark, whole, as_many_since(contents, known, offsets, since)),
        left_out=tuple(_left_out(contents, records, names)),
        obstacles=(*obstacles, *unjudged(_of_rows(whole, logs))),
        observed=_with_writers(asked.observed, known, contents),
    )


def _of_rows(
    whole: Mapping[TopicKindPartition, datetime | None], logs: Iterable[Log]
) -> dict[TopicKindPartition, datetime | None]:
    with_rows = {(log.topic, log.kind) for log in logs}
    return {place: since for place, since in whole.items() if place[:2] in with_rows}


def _with_writers(
    observed: ObservedTopics, logs: Iterable[Log], contents: Contents
) -> ObservedTopics:
    """Add the services that have written on topics, by the records that were read."""
    topics = dict(observed.topics)
    for log in logs:
        if topic := topics[log.name]:
            writers = contents.writers.get((log.topic, log.kind), ())
            topics[log.name] = replace(topic, writers=topic.writers.union(writers))
    return replace(observed, topics=topics)


def _observed(offsets: TopicOffsets) -> ObservedTopic:
    ends = {range_.partition: range_.end for range_ in offsets.ranges}
    return ObservedTopic(topic_id=offsets.topic_id, ends=ends)


def connection_of(access: BrokerAccess) -> KafkaConnection:
    """Return the connection settings; raises ConfigurationError for invalid ones."""
    return KafkaConnection(
        bootstrap_servers=access.bootstrap,
        client_id="shieldtx-reconcile",
        security_protocol=access.security_protocol,
        sasl_mechanism=access.sasl_mechanism,
        sasl_username=access.sasl_username,
        sasl_password=access.sasl_password,
        ssl_cafile=access.ssl_cafile,
        # Settings from the environment were checked when the application was loaded.
        in_file=True,
    )


def read_since(request: ReconcileRequest) -> datetime | None:
    """Return the time from which records are read; None: all records.

    An incremental run selects rows that settled after some time, and their records were sent
    shortly before. So that no record of an event written within a margin of that time is missed,
    the read begins two margins earlier. A record is at most a margin older than its event.
    """
    selection, margin = request.selection, request.margin
    moved = [selection.moved_since.get(service.name) for service in request.services]
    known = [when for when in moved if when is not None]
    begins = [min(known) - 2 * margin] if len(known) == len(moved) else []
    if selection.written_since is not None:
        begins.append(selection.written_since - margin)
    return max(begins, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The broker's information about the topics, before any record is read."""

    logs: tuple[Log, ...] = ()
    """The topics that can be read."""
    offsets: Mapping[str, TopicOffsets] = field(default_factory=dict)
    """By the name at the broker."""
    obstacles: tuple[str, ...] = ()
    observed: ObservedTopics


def _asked(connection: KafkaConnection, request: ReconcileRequest, logs: Sequence[Log]) -> _Asked:
    """Query the offsets of topics: those of `logs`, which have rows, and those without rows."""
    since = read_since(request)
    with TopicOffsetReader(connection) as asked:
        cluster = asked.cluster_id()
        more = topics_without_rows(
            asked, request, with_rows={log.name for log in logs}, cluster=cluster
        )
        every = (*logs, *more.logs)
        offsets, obstacles = _offsets_of(asked, every, since)
    before = request.topics_before.topics
    unread = {name: topic for name, topic in before.items() if name not in more.gone}
    return _Asked(
        logs=tuple(log for log in every if log.name in offsets),
        offsets=offsets,
        obstacles=(*more.obstacles, *obstacles),
        observed=ObservedTopics(
            cluster=cluster,
            topics={**unread, **{name: _observed(each) for name, each in offsets.items()}},
        ),
    )


def _offsets_of(
    asked: TopicOffsetReader, logs: Iterable[Log], since: datetime | None
) -> tuple[dict[str, TopicOffsets], list[str]]:
    offsets: dict[str, TopicOffsets] = {}
    obstacles: list[str] = []
    for log in logs:
        try:
            if asked.is_compacted(log.name):
                obstacles.append(
                    f"topic {log.name} is compacted (cleanup.policy), which takes records away one "
                    "by one: its records could not be judged"
                )
            else:
                offsets[log.name] = asked.of(log.name, since=since)
        except BrokerUnavailable:
            raise
        except (BrokerError, TopicMissing) as error:
            obstacles.append(f"topic {log.name} could not be read: {error}")
    return offsets, obstacles


def _read_once(records: DataFrame) -> DataFrame:
    """Read a frame and persist it; raises BrokerError for a worker's error about the broker."""
    try:
        return records.localCheckpoint(eager=True)
    except Exception as error:
        found = _BROKER_ERROR.search(str(error))
        if found is None:
            raise
        raise BrokerError(found.group(1).strip()) from error


def _left_out(contents: Contents, records: DataFrame, names: Collection[str]) -> Iterable[str]:
    """Yield sentences about records that are not events of these services."""
    for (topic, kind, problem), number in sorted(contents.unfit.items()):
        yield f"{number} records of {topic} ({kind}) are not events: {problem}"
    if not contents.foreign:
        return
    # Foreign texts may be long, and many.
    source = F.substring("source", 1, _SHOWN_CHARACTERS).alias("source")
    is_foreign = F.col("problem").isNull() & ~is_of(names)
    rows = (
        records.where(is_foreign)
        .groupBy("topic", "kind", source)
        .agg(F.count(F.lit(1)).alias("number"))
        .orderBy(F.desc("number"), "topic", "kind", "source")
        .limit(_SHOWN_SOURCES)
        .collect()
    )
    for row in rows:
        yield (
            f"{row.number} records of {row.topic} ({row.kind}) are of {row.source!r}, which is "
            "none of these services"
        )
    if more := contents.foreign - sum(row.number for row in rows):
        yield f"{more} further records are of other services still"
