"""The operations of the reconciliation on rows: DataFrame in, DataFrame out."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F  # noqa: N812  the usual name in PySpark programs

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.rules import PAIRS
from shieldtx.reconcile.verdicts import Verdict

from .purged_rows import first_trace, is_ambiguous, owes_rollback, unless_unknown
from .verdict_expression import verdict_of

STREAM = ("kind", "upstream", "downstream")
PAIR = (*STREAM, "consumer_group")
ROW = (
    *PAIR,
    "event_id",
    "topic",
    "event_type",
    "causation_id",
    "upstream_status",
    "downstream_status",
    "upstream_attempts",
    "attempts",
    "created_at",
    "published_at",
    "received_at",
    "settled_at",
    "upstream_moved_at",
    "downstream_moved_at",
    "record",
    "unlisted",
    "ambiguous",
    "ahead",
    "verdict",
)
"""The columns of a row with a verdict, as written to `rows/`. `unlisted`: the row waits for an
operator, and a further run would not find it, because it has no error. `ambiguous`: the missing row
was removed by age, or never existed, and nothing shows which. For MATCHED or REFUSED rows, the
missing row is an earlier one of the group. `ahead`: the row is not judged until one of its times,
which is in the future, has come."""
_BOTH = ("topic", "event_type", "causation_id", "causation_source", "bucket")
_ROUTE = ("kind", "upstream", "topic", "event_type", "writer")


def paired(
    sent: DataFrame, received: DataFrame, routes: DataFrame, applied: DataFrame | None = None
) -> DataFrame:
    """Return each event with the inbox row of each group that has it or should have it.

    `applied` has the events applied by groups that should receive only the rollbacks of these;
    None: there is no such group.
    """
    is_rollback = F.col("kind") == TxKind.ROLLBACK.value
    writer = F.when(is_rollback, F.col("causation_source"))
    due = (
        sent.withColumn("writer", F.coalesce(writer, F.lit("")))
        .join(F.broadcast(routes), on=[*_ROUTE], how="inner")
        .drop("seq", "writer")
        .transform(_expected_if_applied, applied)
        .withColumnsRenamed({name: f"sent_{name}" for name in _BOTH})
    )
    arrived = received.drop("seq").withColumnsRenamed({name: f"received_{name}" for name in _BOTH})
    pairs = due.join(arrived, on=[*PAIR, "event_id"], how="full_outer")
    return pairs.where(
        F.col("downstream_status").isNotNull() | F.coalesce("expected", F.lit(col=False))
    ).select(
        *PAIR,
        "event_id",
        *(F.coalesce(f"sent_{name}", f"received_{name}").alias(name) for name in _BOTH),
        *(name for name in due.columns if name.startswith("upstream_")),
        *(name for name in arrived.columns if name.startswith("downstream_")),
        "attempts",
        "max_attempts",
        "created_at",
        "published_at",
        "event_time",
        "received_at",
        "settled_at",
    )


def _expected_if_applied(due: DataFrame, applied: DataFrame | None) -> DataFrame:
    """Do not expect a rollback of an event that a former group has not applied."""
    if applied is None:
        return due.drop("if_applied")
    by = ["downstream", "consumer_group", "causation_source", "causation_id"]
    known = applied.withColumn("is_applied", F.lit(col=True))
    is_due = ~F.col("if_applied") | F.col("is_applied").isNotNull()
    return (
        due.join(known, on=by, how="left")
        .withColumn("expected", F.col("expected") & is_due)
        .drop("if_applied", "is_applied")
    )


def alone(pairs: DataFrame) -> DataFrame:
    """Return the event of each pair that has no row on one side.

    `missing` is that side, "upstream" or "downstream", and `service` the service that should have
    the row.
    """
    lacks_sender = F.col("upstream_status").isNull()
    return (
        pairs.where(lacks_sender | F.col("downstream_status").isNull())
        .select(
            F.when(lacks_sender, "upstream").otherwise("downstream").alias("missing"),
            F.when(lacks_sender, F.col("upstream")).otherwise(F.col("downstream")).alias("service"),
            "event_id",
        )
        .distinct()
    )


def with_rollbacks(pairs: DataFrame, rollbacks: DataFrame, compensations: DataFrame) -> DataFrame:
    """Add `answered`, `entitled`, `answered_at` and `undone_first`.

    A COMMIT is answered by a rollback of it, from the service that received it. A ROLLBACK is
    answered by the compensation of its event, in the group that received it. A COMMIT is undone
    first if that compensation was settled before the group's effect.
    """
    answers = (
        rollbacks.withColumns(
            {
                "kind": F.lit(TxKind.COMMIT.value),
                "answered_id": F.col("event_id"),
                "answering_group": F.lit(""),
            }
        )
        .select(
            *STREAM, "answered_id", "answering_group", "entitled", "answered_at", "answer_ahead"
        )
        .unionByName(
            compensations.select(
                F.lit(TxKind.ROLLBACK.value).alias("kind"),
                F.lit("").alias("upstream"),
                "downstream",
                F.col("causation_id").alias("answered_id"),
                F.col("consumer_group").alias("answering_group"),
                F.lit(col=True).alias("entitled"),
                "answered_at",
                F.lit(col=False).alias("answer_ahead"),
            )
        )
    )
    is_commit = F.col("kind") == TxKind.COMMIT.value
    asking = pairs.withColumns(
        {
            "answered_id": F.when(is_commit, F.col("event_id")).otherwise(F.col("causation_id")),
            "answering_group": F.when(is_commit, "").otherwise(F.col("consumer_group")),
            "asked_of": F.when(is_commit, F.col("upstream")).otherwise(""),
        }
    )
    keys = ["kind", "asked_of", "downstream", "answered_id", "answering_group"]
    undone = compensations.select(
        F.lit(TxKind.COMMIT.value).alias("kind"),
        "downstream",
        "consumer_group",
        F.col("causation_id").alias("event_id"),
        F.col("answered_at").alias("undone_at"),
    )
    return (
        asking.join(answers.withColumnRenamed("upstream", "asked_of"), on=keys, how="left")
        .join(undone, on=["kind", "downstream", "consumer_group", "event_id"], how="left")
        .withColumn(
            "undone_first",
            unless_unknown(F.col("undone_at") < F.col("settled_at"), otherwise=False),
        )
        .withColumn("answered", F.col("answered_at").isNotNull())
        .withColumn(
            "entitled", F.coalesce("entitled", F.lit(col=False)) | F.col("undone_at").isNotNull()
        )
        .drop("asked_of", "answered_id", "answering_group", "undone_at")
    )


def judged(pairs: DataFrame, windows: DataFrame) -> DataFrame:
    """Return each pair, answers included, with its verdict.

    `windows` has the watermark, the horizon and the memory of each stream.
    """
    last_move = F.greatest("upstream_moved_at", "downstream_moved_at", "answered_at")
    is_within = F.col("attempts") <= F.col("max_attempts")
    has_same_payload = F.col("upstream_digest") == F.col("downstream_digest")
    has_same_envelope = F.col("upstream_envelope") == F.col("downstream_envelope")
    facts = {
        Fact.OWES: F.when(F.col("kind") == TxKind.COMMIT.value, owes_rollback()).otherwise(
            F.coalesce(F.col("downstream_owes"), _never_had_its_event())
        ),
        Fact.OVERTAKEN: unless_unknown(F.col("downstream_overtaken"), otherwise=False),
        Fact.SAME_PAYLOAD: unless_unknown(has_same_payload, otherwise=True),
        Fact.SAME_ENVELOPE: unless_unknown(has_same_envelope, otherwise=True),
        Fact.WITHIN_LIMIT: unless_unknown(is_within, otherwise=True),
        Fact.QUIET: unless_unknown(last_move < F.col("watermark"), otherwise=False),
        Fact.KEPT: unless_unknown(first_trace() >= F.col("horizon"), otherwise=True),
    }
    return (
        pairs.join(F.broadcast(windows), on=[*STREAM], how="left")
        .withColumns({fact.value: column for fact, column in facts.items()})
        .withColumn("record", F.lit(None).cast("string"))
        .withColumn(
            "unlisted",
            F.coalesce("upstream_unlisted", F.lit(col=False))
            | F.coalesce("downstream_unlisted", F.lit(col=False)),
        )
        .withColumn("verdict", verdict_of(PAIRS))
        .withColumn("ambiguous", is_ambiguous())
        .withColumn("ahead", _waits_for_its_times())
        .select(*ROW)
    )


def _waits_for_its_times() -> Column:
    """Return whether a pair is not judged because a time of it, or of a rollback, is in the future.

    The pair is in flight; or its event was taken back, and no cause of that was found so far.
    """
    times = ("upstream_ahead", "downstream_ahead", "answer_ahead")
    is_ahead = F.coalesce(*(F.when(F.col(name), F.lit(col=True)) for name in times))
    is_in_flight = F.col("verdict") == Verdict.IN_FLIGHT.value
    is_unfounded = (
        (F.col("kind") == TxKind.COMMIT.value)
        & (F.col("verdict") == Verdict.MATCHED.value)
        & F.col("answered")
        & ~F.col("entitled")
    )
    return unless_unknown(is_ahead & (is_in_flight | is_unfounded), otherwise=False)


def within(pairs: DataFrame, selection: Selection) -> DataFrame:
    """Keep the pairs of events that were written in the selection's window."""
    written = F.coalesce("created_at", "event_time")
    since, until = selection.written_since, selection.written_until
    pairs = pairs if since is None else pairs.where(written >= _time(since))
    return pairs if until is None else pairs.where(written < _time(until))


def listed(rows: DataFrame) -> DataFrame:
    """Keep the rows that are not clean.

    TOO_OLD rows that one side has purged as configured are left out: they can be as many as all
    other rows. Ambiguous rows are kept, whatever the verdict, and rows that are not judged yet
    because of their times.
    """
    is_alone = F.col("upstream_status").isNull() | F.col("downstream_status").isNull()
    is_purged = (F.col("verdict") == Verdict.TOO_OLD.value) & is_alone & ~F.col("ambiguous")
    is_listed = F.col("verdict").isin([v.value for v in Verdict if v.is_listed])
    return rows.where((is_listed & ~is_purged) | F.col("ambiguous") | F.col("ahead"))


def counted(rows: DataFrame) -> DataFrame:
    """Count events by pair and verdict, mismatches also by the `day` on which they were written."""
    day = F.when(is_mismatch(), F.to_date(F.coalesce("created_at", "received_at")))
    return rows.groupBy(*PAIR, "verdict", day.alias("day")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if("unlisted").alias("unlisted"),
        F.count_if("ambiguous").alias("ambiguous"),
        F.count_if("ahead").alias("ahead"),
        F.count_if(F.col("ambiguous") & F.col("upstream_status").isNull()).alias("unknown"),
        F.count_if(F.col("ambiguous") & F.col("downstream_status").isNotNull()).alias("arrived"),
    )


def is_mismatch() -> Column:
    """Return whether a row's verdict is a mismatch."""
    return F.col("verdict").isin([v.value for v in Verdict if v.is_mismatch])


def first_rows(rows: DataFrame, limit: int) -> DataFrame:
    """Keep the `limit` earliest rows of each pair's mismatches; `number` is the rank."""
    earliest = F.coalesce("created_at", "received_at")
    of_its_pair = SparkWindow.partitionBy(*PAIR, "verdict").orderBy(earliest, "event_id")
    return (
        rows.where(is_mismatch())
        .withColumn("number", F.row_number().over(of_its_pair))
        .where(F.col("number") <= limit)
    )


def _never_had_its_event() -> Column:
    """Return False for a rollback of an event that is too young to be purged, else NULL.

    A UUIDv7 contains the time at which the event was written.
    """
    digits = F.regexp_replace(F.substring("causation_id", 1, 13), "-", "")
    written = F.timestamp_millis(F.conv(digits, 16, 10).cast("bigint"))
    is_young = (F.substring("causation_id", 15, 1) == "7") & (written >= F.col("horizon"))
    is_young |= F.col("horizon").isNull() & F.col("watermark").isNotNull()
    return F.when(is_young, F.lit(col=False))


def _time(when: datetime) -> Column:
    return F.lit(when)
