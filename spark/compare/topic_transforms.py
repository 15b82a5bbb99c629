"""Events beside their records: DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile import findings
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.request import ReconcileRequest, Selection
from shieldtx.reconcile.rules import TOPICS
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.window import Window

from ..sources.topic_completeness import EVERYTHING, WHOLE
from .key_partition import partition_of
from .topic_order import with_order
from .verdict_expression import verdict_of

_SENT: Final = OutboxStatus.PROCESSED.value
_OF_OPERATORS: Final = (OutboxStatus.FAILED.value, OutboxStatus.UNRESOLVED.value)
_EVENT: Final = ("upstream", "kind", "topic", "event_id")
_RFC_3339: Final = r"^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$"
_FIRST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LAST: Final = datetime(9998, 12, 31, tzinfo=UTC)


def judged(
    outbox: DataFrame,
    records: DataFrame,
    horizons: DataFrame,
    *,
    request: ReconcileRequest,
    windows: Mapping[str, Window],
) -> DataFrame:
    """Return a row with its verdict for each event that has a record, or a topic that was read.

    `outbox` is what `outbox_for_topics` reads, and the others are what `topics` has read. `windows`
    holds that of each service by itself.
    """
    margin = request.margin
    known = horizons.where(F.col("partition") == WHOLE).select("topic", "kind")
    written = outbox.drop("seq").join(F.broadcast(known), on=["topic", "kind"], how="left_semi")
    events = with_completeness(beside(written, by_event(records)), horizons)
    # What is behind an event in its partition may lie before all that the run covers.
    rows = with_order(events, margin).where(is_selected(request.selection))
    facts = {
        Fact.RECORDED: is_recorded(),
        Fact.REPEATED: F.coalesce(F.col("records") > 1, F.lit(col=False)),
        Fact.QUIET: is_quiet(windows),
        Fact.KEPT: is_kept(windows, margin),
    }
    return rows.withColumns({fact.value: column for fact, column in facts.items()}).select(
        "kind",
        "upstream",
        F.lit(findings.TOPICS).alias("downstream"),
        F.col("topic").alias("consumer_group"),
        "event_id",
        "topic",
        "event_type",
        "causation_id",
        "upstream_status",
        F.lit(None).cast("string").alias("downstream_status"),
        "upstream_attempts",
        F.lit(None).cast("int").alias("attempts"),
        F.col("written_at").alias("created_at"),
        "published_at",
        F.lit(None).cast("timestamp").alias("received_at"),
        F.lit(None).cast("timestamp").alias("settled_at"),
        "upstream_moved_at",
        F.lit(None).cast("timestamp").alias("downstream_moved_at"),
        F.when(is_recorded(), F.concat_ws(":", "first.partition", "first.offset")).alias("record"),
        F.lit(col=False).alias("unlisted"),
        is_ambiguous(windows, margin).alias("ambiguous"),
        is_ahead().alias("ahead"),
        verdict_of(TOPICS).alias("verdict"),
    )


def without_rows(outbox: DataFrame, records: DataFrame, selection: Selection) -> DataFrame:
    """Return the events that a selection covers by their records, and that lack their rows so far.

    A record may have been sent, once more, after its row was settled.
    """
    events = records.select(
        F.col("source").alias("upstream"),
        "event_id",
        moment_of(F.col("written_at")).alias("written_at"),
        "sent_at",
    ).where(is_covered(selection))
    kept = outbox.select("upstream", "event_id")
    return events.join(kept, on=["upstream", "event_id"], how="left_anti").select(
        "upstream", "event_id"
    )


def by_event(records: DataFrame) -> DataFrame:
    """Return one row an event: how many records it has, and its first one.

    Offsets of different partitions do not compare. So where an event's records lie in several, as
    they may when partitions were added, the first one is the one that was sent first, and
    `partition`, by which order is judged, is NULL.
    """
    place = F.struct("partition", "offset")
    is_in_one = F.min("partition") == F.max("partition")
    first = F.when(is_in_one, F.min(place)).otherwise(F.min_by(place, "sent_at"))
    # The same in all records of an event, or else the id was used twice.
    common = ("key", "event_type", "causation_id")
    return (
        records.withColumnRenamed("source", "upstream")
        .groupBy(*_EVENT)
        .agg(
            F.count(F.lit(1)).alias("records"),
            first.alias("first"),
            F.when(is_in_one, F.min("partition")).alias("partition"),
            F.min("sent_at").alias("sent_at"),
            moment_of(F.min("written_at")).alias("record_written_at"),
            *(F.min(name).alias(f"record_{name}") for name in common),
        )
    )


def moment_of(text: Column) -> Column:
    """Read a time as RFC 3339 has it, of a year that Python and PostgreSQL know; else NULL.

    Anybody's records lie in a topic, and Spark takes more for a time: `now`, and the year 200000.
    """
    when = text.try_cast("timestamp")
    is_time = text.rlike(_RFC_3339) & when.between(F.lit(_FIRST), F.lit(_LAST))
    return F.when(is_time, when)


def beside(outbox: DataFrame, events: DataFrame) -> DataFrame:
    """Put each outbox row beside the records of its event in its topic; either may be missing.

    What a row tells comes from the row, as far as there is one.
    """
    of_record = {"key": "key", "event_type": "event_type", "causation_id": "causation_id"}
    of_record["written_at"] = "created_at"
    return outbox.join(events, on=list(_EVENT), how="full_outer").withColumns(
        {name: F.coalesce(of_row, f"record_{name}") for name, of_row in of_record.items()}
    )


def with_completeness(events: DataFrame, horizons: DataFrame) -> DataFrame:
    """Add `complete_since`, of the partition that holds the event's records or should hold them.

    Without a key any partition might hold them: then the topic as a whole has to be complete. So it
    has for an event without a record that is older than the last partition: while there were fewer,
    its key may have had another one.

    Where it is not known since when there is the last partition, nor since when the topic as a
    whole is complete, no event with a key is missed. `unless_added` is since when the partition of
    such an event is complete: it is missed unless partitions were added later.
    """
    counts = horizons.where(F.col("partition") == WHOLE).select(
        "topic", "kind", "partitions", F.col("complete_since").alias("whole_since")
    )
    since = horizons.select(
        "topic",
        "kind",
        F.col("partition").alias("horizon"),
        F.col("complete_since").alias("partition_since"),
        "as_many_since",
    )
    expected = F.when(is_recorded(), F.col("partition")).otherwise(
        partition_of(F.col("key"), F.col("partitions"))
    )
    is_unknown = F.col("whole_since").isNull() & F.col("as_many_since").isNull()
    return (
        events.join(F.broadcast(counts), on=["topic", "kind"], how="left")
        .withColumn("horizon", F.coalesce(expected, F.lit(WHOLE)))
        .join(F.broadcast(since), on=["topic", "kind", "horizon"], how="left")
        .withColumn(
            "complete_since",
            F.when(is_recorded(), F.col("partition_since")).otherwise(
                F.least(
                    "whole_since",
                    # NULL where one of them is not known, which `greatest` would pass over.
                    F.when(
                        F.col("partition_since").isNotNull() & F.col("as_many_since").isNotNull(),
                        F.greatest("partition_since", "as_many_since"),
                    ),
                )
            ),
        )
        .withColumn(
            "unless_added",
            F.when(
                ~is_recorded() & F.col("key").isNotNull() & is_unknown, F.col("partition_since")
            ),
        )
    )


def is_recorded() -> Column:
    """Whether the topic has a record of the event."""
    return F.col("records").isNotNull()


def is_selected(selection: Selection) -> Column:
    """Whether a selection covers an event by its row, or by its record.

    An event carries the time at which its row was written, and is sent shortly before that row is
    settled.
    """
    row = F.col("upstream_status").isNotNull()
    is_open = F.col("published_at").isNull() | F.col("upstream_status").isin(*_OF_OPERATORS)
    for service, since in selection.moved_since.items():
        moved = F.coalesce(F.col("published_at") >= F.lit(since), F.lit(col=False))
        row &= (F.col("upstream") != service) | is_open | moved
    return row | F.coalesce(is_covered(selection), F.lit(col=False))


def is_covered(selection: Selection) -> Column:
    """Whether a selection covers an event by when it was written and sent; NULL: nobody knows."""
    wanted = F.lit(col=True)
    if selection.written_since is not None:
        wanted &= F.col("written_at") >= F.lit(selection.written_since)
    if selection.written_until is not None:
        wanted &= F.col("written_at") < F.lit(selection.written_until)
    for service, since in selection.moved_since.items():
        moved = F.greatest("written_at", "sent_at") >= F.lit(since)
        wanted &= (F.col("upstream") != service) | moved
    return wanted


def is_quiet(windows: Mapping[str, Window]) -> Column:
    """Whether neither the row nor the first record is younger than the service's watermark."""
    last_move = F.greatest("upstream_moved_at", "sent_at")
    watermark = _of_service({name: window.watermark for name, window in windows.items()})
    return F.coalesce(last_move < watermark, F.lit(col=False))


def is_kept(windows: Mapping[str, Window], margin: timedelta) -> Column:
    """Whether the record, or the row, that is missing cannot have been deleted by age.

    A record is sent after its event was written: that of an event which was written a margin later
    than the partition is complete has to be there. It is sent a margin at most before its row is
    settled: so that of a delayed event, which may have been written long before, has to be there
    too where the row was settled two margins later. A row is purged some time after it was settled,
    which is after its record was sent; but for the time of that, one has its sender's word.
    """
    keeps_record = _is_since(F.col("complete_since"), margin)
    keeps_row = F.least("written_at", "sent_at") >= _horizon(windows)
    kept = F.when(F.col("upstream_status").isNull(), keeps_row).otherwise(
        is_recorded() | keeps_record
    )
    return F.coalesce(kept, F.lit(col=False))


def is_ambiguous(windows: Mapping[str, Window], margin: timedelta) -> Column:
    """Whether what is missing was removed by its age, or has never been there.

    The broker has lost the record, or has deleted it from another partition by age: which one it is
    depends on when the last partition was added, which is not known. Or a record of lately says
    that its event was written long before, and has no row. That is not a delayed event whose row
    was purged: the row is settled after the record is sent.
    """
    verdict = verdict_of(TOPICS)
    perhaps_deleted = verdict == Verdict.BEFORE_TOPIC.value
    perhaps_purged = verdict == Verdict.TOO_OLD.value
    return F.coalesce(
        perhaps_deleted & _is_since(F.col("unless_added"), margin), F.lit(col=False)
    ) | F.coalesce(perhaps_purged & (F.col("sent_at") >= _horizon(windows)), F.lit(col=False))


def is_ahead() -> Column:
    """Whether a row is not judged because a time of it has not come yet."""
    is_in_flight = verdict_of(TOPICS) == Verdict.IN_FLIGHT.value
    return F.coalesce(is_in_flight & F.col("upstream_ahead"), F.lit(col=False))


def _is_since(since: Column, margin: timedelta) -> Column:
    """Whether the record of an event was sent after this for certain."""
    was_sent = F.col("upstream_status") == _SENT
    return (F.col("created_at") >= since + F.lit(margin)) | F.coalesce(
        was_sent & (F.col("published_at") >= since + F.lit(2 * margin)), F.lit(col=False)
    )


def _horizon(windows: Mapping[str, Window]) -> Column:
    return _of_service({name: w.horizon or EVERYTHING for name, w in windows.items()})


def _of_service(times: Mapping[str, datetime | None]) -> Column:
    found = F.lit(None).cast("timestamp")
    for service, time in times.items():
        of_service = F.lit(time) if time is not None else F.lit(None).cast("timestamp")
        found = F.when(F.col("upstream") == service, of_service).otherwise(found)
    return found
