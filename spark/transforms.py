"""What the reconciliation does with rows: DataFrame in, DataFrame out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.reconcile.expectations import Expectation, ExpectedGroup
from shieldtx.reconcile.request import Flow
from shieldtx.reconcile.rules import RULES, Fact, Rule, Value, Verdict
from shieldtx.reconcile.window import Window

PAIR = ("kind", "upstream", "downstream", "consumer_group")


def compared(
    outbox: DataFrame,
    inbox: DataFrame,
    answers: DataFrame,
    *,
    flow: Flow,
    expectation: Expectation,
    window: Window,
) -> DataFrame:
    """Return a row with its verdict for each event and each group that has it or should have it."""
    rows = with_facts(with_answers(paired(outbox, inbox, expectation), answers), flow, window)
    return rows.select(
        "kind",
        F.lit(flow.upstream.name).alias("upstream"),
        F.lit(flow.downstream.name).alias("downstream"),
        "consumer_group",
        "event_id",
        "topic",
        "event_type",
        "causation_id",
        "upstream_status",
        "downstream_status",
        "created_at",
        "published_at",
        "received_at",
        "settled_at",
        verdict_of(
            {
                Fact.KIND: F.col("kind"),
                Fact.UPSTREAM: F.col("upstream_status"),
                Fact.DOWNSTREAM: F.col("downstream_status"),
                Fact.ANSWERED: F.col("answered"),
                Fact.QUIET: F.col("quiet"),
                Fact.KEPT: F.col("kept"),
            }
        ).alias("verdict"),
    )


def paired(outbox: DataFrame, inbox: DataFrame, expectation: Expectation) -> DataFrame:
    """Put each event beside the inbox row of each group that has it or should have it."""
    groups = F.array(*[F.lit(name) for name in expectation.names]).cast("array<string>")
    sent = (
        outbox.withColumn("consumer_group", F.explode(groups))
        .withColumn("expected", is_expected(expectation.groups))
        .select(
            "event_id",
            "consumer_group",
            "expected",
            F.col("topic").alias("sent_topic"),
            F.col("event_type").alias("sent_type"),
            F.col("causation_id").alias("sent_causation_id"),
            F.col("status").alias("upstream_status"),
            "created_at",
            F.col("settled_at").alias("published_at"),
            F.col("moved_at").alias("upstream_moved_at"),
        )
    )
    received = inbox.select(
        "event_id",
        "consumer_group",
        F.col("topic").alias("received_topic"),
        F.col("event_type").alias("received_type"),
        F.col("causation_id").alias("received_causation_id"),
        F.col("status").alias("downstream_status"),
        "event_time",
        "received_at",
        "settled_at",
        F.col("moved_at").alias("downstream_moved_at"),
    )
    is_received = F.col("downstream_status").isNotNull()
    is_wanted = F.coalesce(F.col("expected"), F.lit(col=False))
    return (
        sent.join(received, on=["event_id", "consumer_group"], how="full_outer")
        .where(is_received | is_wanted)
        .withColumn("topic", F.coalesce("sent_topic", "received_topic"))
        .withColumn("event_type", F.coalesce("sent_type", "received_type"))
        .withColumn("causation_id", F.coalesce("sent_causation_id", "received_causation_id"))
    )


def rollbacks_of(rollback_outbox: DataFrame) -> DataFrame:
    """Return which COMMIT events are answered: those of which a rollback has been written."""
    return rollback_outbox.select(
        F.col("causation_id").alias("event_id"), F.lit(col=True).alias("answered")
    ).distinct()


def compensations(rollback_inbox: DataFrame) -> DataFrame:
    """Return which events of rollbacks are answered: those that the group has compensated.

    The rollback that did it carries the event's id; a later rollback of the same event does not,
    and is settled all the same.
    """
    is_compensated = F.col("compensated_id").isNotNull()
    return (
        rollback_inbox.where(is_compensated)
        .select(
            "consumer_group",
            F.col("compensated_id").alias("causation_id"),
            F.lit(col=True).alias("answered"),
        )
        .distinct()
    )


def with_answers(pairs: DataFrame, answers: DataFrame) -> DataFrame:
    """Add `answered`, found by all the other columns of `answers`."""
    keys = [name for name in answers.columns if name != "answered"]
    return pairs.join(answers, on=keys, how="left").withColumn(
        "answered", F.coalesce("answered", F.lit(col=False))
    )


def with_facts(pairs: DataFrame, flow: Flow, window: Window) -> DataFrame:
    """Add what the rules ask for beyond the statuses: `kind`, `quiet` and `kept`."""
    last_move = F.greatest("upstream_moved_at", "downstream_moved_at")
    # The event's own time is its writer's word, so that of the arrival counts as well.
    first_trace = F.coalesce(
        F.least("event_time", "received_at"), F.col("published_at"), F.col("created_at")
    )
    is_quiet = F.lit(col=False) if window.watermark is None else last_move < _time(window.watermark)
    is_kept = F.lit(col=True) if window.horizon is None else first_trace >= _time(window.horizon)
    return (
        pairs.withColumn("kind", F.lit(flow.kind.value))
        .withColumn("quiet", is_quiet)
        .withColumn("kept", is_kept)
    )


def is_expected(groups: Sequence[ExpectedGroup]) -> Column:
    """Whether the group of `consumer_group` should receive events of `topic` and `event_type`."""
    wanted = [
        (F.col("consumer_group") == group.name)
        & _any_or_one_of("topic", group.topics)
        & _any_or_one_of("event_type", group.event_types)
        for group in groups
    ]
    return reduce(or_, wanted, F.lit(col=False))


def verdict_of(facts: dict[Fact, Column], rules: Sequence[Rule] = RULES) -> Column:
    """Turn the rules into one expression: the verdict of the first rule whose conditions hold."""
    *conditional, last = rules
    verdict = F.lit(last.verdict.value)
    for rule in reversed(conditional):
        conditions = [_is_one_of(facts[fact], allowed) for fact, allowed in rule.when.items()]
        verdict = F.when(reduce(and_, conditions), rule.verdict.value).otherwise(verdict)
    return verdict


def listed(rows: DataFrame) -> DataFrame:
    """Keep what is worth a look: mismatches, and what is parked, in flight or too old."""
    return rows.where(F.col("verdict").isin([v.value for v in Verdict if v.is_listed]))


def counted(rows: DataFrame) -> DataFrame:
    """Count events by pair and verdict."""
    return rows.groupBy(*PAIR, "verdict").agg(F.count(F.lit(1)).alias("rows"))


def first_rows(rows: DataFrame, limit: int) -> DataFrame:
    """Keep the `limit` earliest rows of each pair's mismatches."""
    is_mismatch = F.col("verdict").isin([v.value for v in Verdict if v.is_mismatch])
    earliest = F.coalesce("created_at", "received_at")
    of_its_pair = SparkWindow.partitionBy(*PAIR, "verdict").orderBy(earliest, "event_id")
    return (
        rows.where(is_mismatch)
        .withColumn("number", F.row_number().over(of_its_pair))
        .where(F.col("number") <= limit)
        .orderBy(*PAIR, "verdict", "number")
        .drop("number")
    )


def _is_one_of(column: Column, allowed: Iterable[Value]) -> Column:
    values = list(allowed)
    present = [value for value in values if value is not None]
    conditions = [column.isin(present)] if present else []
    conditions += [column.isNull()] if None in values else []
    # NULL is no value, so a comparison with it must not leave the rule undecided.
    return F.coalesce(reduce(or_, conditions), F.lit(col=False))


def _any_or_one_of(column: str, values: Sequence[str]) -> Column:
    return F.col(column).isin(list(values)) if values else F.lit(col=True)


def _time(when: datetime) -> Column:
    return F.lit(when)
