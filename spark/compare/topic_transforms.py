"""Events with their records: DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

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

    `outbox` is the result of `outbox_for_topics`, and the other frames are results of `topics`.
    `windows` has the window of each service alone.
    """
    margin = request.margin
    known = horizons.where(F.col("partition") == WHOLE).select("topic", "kind")
    written = outbox.drop("seq").join(F.broadcast(known), on=["topic", "kind"], how="left_semi")
    events = with_completeness(with_records(written, by_event(records)), horizons)
    # The order also depends on records outside the selection, so the selection is applied
    # afterwards.
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
    """Return the events whose records are selected, and whose rows are not read yet.

    A record may have been sent once more after its row was settled.
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
    """Return one row for each event: the number of its records, and its first one.

    Offsets of different partitions do not compare. The records of an event may be in several
    partitions if partitions were added. Then the first record is the one that was sent first, and
    `partition`, by which order is judged, is NULL.
    """
    place = F.struct("partition", "offset")
    is_in_one = F.min("partition") == F.max("partition")
    first = F.when(is_in_one, F.min(place)).otherwise(F.min_by(place, "sent_at"))
    # The same in all records of an event, unless the id was used twice.
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
    """Return a time in RFC 3339 format, of a year that Python and PostgreSQL support; else NULL.

    Any client may write to a topic, and Spark also accepts `now` and the year 200000 as times.
    """
    when = text.try_cast("timestamp")
    is_time = text.rlike(_RFC_3339) & when.between(F.lit(_FIRST), F.lit(_LAST))
    return F.when(is_time, when)


def with_records(outbox: DataFrame, events: DataFrame) -> DataFrame:
    """Return each outbox row with the records of its event in its topic; either may be missing.

    If there is a row, its values take precedence.
    """
    of_record = {"key": "key", "event_type": "event_type", "causation_id": "causation_id"}
    of_record["written_at"] = "created_at"
    return outbox.join(events, on=list(_EVENT), how="full_outer").withColumns(
        {name: F.coalesce(of_row, f"record_{name}") for name, of_row in of_record.items()}
    )


def with_completeness(events: DataFrame, horizons: DataFrame) -> DataFrame:
    """Add `complete_since`, of the partition that has or should have the event's records.

    Without a key any partition might have them, so the topic as a whole must be complete. The same
    applies to an event without a record that is older than the last partition: with fewer
    partitions, its key may have had another one.

    If neither the time of the last partition nor the completeness of the whole topic is known, no
    event with a key counts as missing. `unless_added` is the time since which the partition of such
    an event is complete: the event is missing unless partitions were added later.
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
                    # NULL if one of them is not known; `greatest` alone would ignore it.
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
    """Return whether the topic has a record of the event."""
    return F.col("records").isNotNull()


def is_selected(selection: Selection) -> Column:
    """Return whether a selection covers an event by its row, or by its record.

    An event has the time at which its row was written, and is sent shortly before that row is
    settled.
    """
    row = F.col("upstream_status").isNotNull()
    is_open = F.col("published_at").isNull() | F.col("upstream_status").isin(*_OF_OPERATORS)
    for service, since in selection.moved_since.items():
        moved = F.coalesce(F.col("published_at") >= F.lit(since), F.lit(col=False))
        row &= (F.col("upstream") != service) | is_open | moved
    return row | F.coalesce(is_covered(selection), F.lit(col=False))


def is_covered(selection: Selection) -> Column:
    """Return whether a selection covers an event by writing and sending times; NULL: unknown."""
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
    """Return whether both the row and the first record are older than the service's watermark."""
    last_move = F.greatest("upstream_moved_at", "sent_at")
    watermark = _of_service({name: window.watermark for name, window in windows.items()})
    return F.coalesce(last_move < watermark, F.lit(col=False))


def is_kept(windows: Mapping[str, Window], margin: timedelta) -> Column:
    """Return whether the missing record, or row, cannot have been deleted by age.

    A record is sent after its event was written. So the record must exist if the event was written
    a margin later than the time since which the partition is complete. A record is sent at most a
    margin before its row is settled. So the record of a delayed event, which may have been written
    long before, must also exist if the row was settled two margins later. A row is purged some time
    after its settlement, which follows the sending of its record; only the sender's clock has that
    time.
    """
    keeps_record = _is_since(F.col("complete_since"), margin)
    keeps_row = F.least("written_at", "sent_at") >= _horizon(windows)
    kept = F.when(F.col("upstream_status").isNull(), keeps_row).otherwise(
        is_recorded() | keeps_record
    )
    return F.coalesce(kept, F.lit(col=False))


def is_ambiguous(windows: Mapping[str, Window], margin: timedelta) -> Column:
    """Return whether the missing record or row was removed by age, or never existed.

    The broker has lost the record, or has deleted it from another partition by age: that depends on
    the unknown time at which the last partition was added. Or a recent record belongs to an event
    that was written long before, and has no row. A purged row of a delayed event is excluded: a row
    is settled after its record is sent.
    """
    verdict = verdict_of(TOPICS)
    perhaps_deleted = verdict == Verdict.BEFORE_TOPIC.value
    perhaps_purged = verdict == Verdict.TOO_OLD.value
    return F.coalesce(
        perhaps_deleted & _is_since(F.col("unless_added"), margin), F.lit(col=False)
    ) | F.coalesce(perhaps_purged & (F.col("sent_at") >= _horizon(windows)), F.lit(col=False))


def is_ahead() -> Column:
    """Return whether a row is not judged because one of its times is in the future."""
    is_in_flight = verdict_of(TOPICS) == Verdict.IN_FLIGHT.value
    return F.coalesce(is_in_flight & F.col("upstream_ahead"), F.lit(col=False))


def _is_since(since: Column, margin: timedelta) -> Column:
    """Return whether the record of an event was certainly sent after this time."""
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
