"""Defects in the verdicts on events and their topics, put back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it

from shieldtx.app import reconciliation_memory
from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile import earlier_topics, observed
from shieldtx.reconcile.facts import Fact
from shieldtx.reconcile.observed import ObservedTopics
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.rules import TOPICS, Rule
from shieldtx.reconcile.verdicts import Verdict
from spark.compare import topic_transforms
from spark.sources import outbox_for_topics, topic_completeness, topics
from spark.sources.kafka_data_source import Log
from tests.verification.oracle import topic_stories
from tests.verification.oracle.mutants import Mutant, instead, rules_of, without
from tests.verification.oracle.topic_stories import ON_TOPICS


def _always(_: Any, logs: Iterable[Log], *__: Any) -> dict[tuple[str, str], Any]:
    return {(log.topic, log.kind): topic_completeness.EVERYTHING for log in logs}


def _missed_however_old(rule: Rule) -> Rule | None:
    return without(rule, Fact.KEPT) if rule.verdict is Verdict.ABSENT_FROM_TOPIC else rule


def _forged_however_old(rule: Rule) -> Rule | None:
    return without(rule, Fact.KEPT) if rule.verdict is Verdict.RECORD_WITHOUT_ROW else rule


def _order_is_not_compared(rule: Rule) -> Rule | None:
    return None if rule.verdict is Verdict.ORDER_INVERTED else rule


def _open_rows_have_no_records(rule: Rule) -> Rule | None:
    if rule.verdict is not Verdict.ON_TOPIC:
        return rule
    sent = frozenset({OutboxStatus.PROCESSED})
    return Rule(verdict=rule.verdict, when={**rule.when, Fact.UPSTREAM: sent})


def _none_was_read(*_: Any) -> ObservedTopics:
    return ObservedTopics()


OF_TOPICS: Final = (
    Mutant(
        name="a topic is not read once its rows are lost",
        applied=instead(earlier_topics, "topics_before", _none_was_read),
        stories=(topic_stories.rows_of_a_topic_are_lost,),
    ),
    Mutant(
        name="N5 a partition that was added had its keys always",
        applied=instead(topic_completeness, "as_many_since", _always),
        stories=(topic_stories.keys_are_used_for_days,),
    ),
    Mutant(
        name="N1 a topic that was created again goes unnoticed",
        applied=instead(observed, "topics_replaced", lambda *_: iter(())),
        stories=ON_TOPICS,
    ),
    Mutant(
        name="records are missed though the topic may have deleted them",
        applied=rules_of(TOPICS, _missed_however_old),
        stories=ON_TOPICS,
    ),
    Mutant(
        name="records are accused whose rows may be purged",
        applied=rules_of(TOPICS, _forged_however_old),
    ),
    Mutant(
        name="records in the wrong order are in order",
        applied=rules_of(TOPICS, _order_is_not_compared),
        stories=(topic_stories.order_is_inverted,),
    ),
    Mutant(
        name="a record of an open row is a contradiction",
        applied=rules_of(TOPICS, _open_rows_have_no_records),
    ),
)


def _by_writing_alone(selection: Selection) -> Column:
    wanted = F.lit(col=True)
    for service, since in selection.moved_since.items():
        wanted &= (F.col("upstream") != service) | (F.col("written_at") >= F.lit(since))
    return wanted


_is_kept = topic_transforms.is_kept


def _kept_by_writing_alone(*given: Any) -> Column:
    never = F.lit(None).cast("timestamp")
    with_settlement = instead(topic_transforms, "_SENT", never)
    with with_settlement():
        return _is_kept(*given)


def _read_as_spark_does(text: Column) -> Column:
    return text.try_cast("timestamp")


def _never_ambiguous(*_: Any) -> Column:
    return F.lit(col=False)


def _unshifted(given: Any, **_: Any) -> Any:
    return given


TOPICS_ON_SPARK: Final = (
    Mutant(
        name="a topic is not read once its rows are lost",
        applied=instead(reconciliation_memory, "topics_before", _none_was_read),
        stories=(topic_stories.rows_of_a_topic_are_lost,),
    ),
    Mutant(
        name="N5 a partition that was added had its keys always",
        applied=instead(topics, "as_many_since", _always),
        stories=(topic_stories.keys_are_used_for_days,),
    ),
    Mutant(
        name="N8 whatever Spark takes for a time is one",
        applied=instead(topic_transforms, "moment_of", _read_as_spark_does),
        stories=(topic_stories.record_has_no_time,),
    ),
    Mutant(
        name="N9 a further run looks at records by when they were written",
        applied=instead(topic_transforms, "is_covered", _by_writing_alone),
        stories=(topic_stories.old_record_is_forged,),
    ),
    Mutant(
        name="N9 records are missed by when they were written",
        applied=instead(topic_transforms, "is_kept", _kept_by_writing_alone),
        stories=(topic_stories.record_of_a_delayed_event_is_lost,),
    ),
    Mutant(
        name="an old record without a row, and the run is good",
        applied=instead(topic_transforms, "is_ambiguous", _never_ambiguous),
        stories=(topic_stories.old_record_is_forged,),
    ),
    Mutant(
        name="an order is judged without what was settled before",
        applied=instead(outbox_for_topics, "replace", _unshifted),
        stories=(topic_stories.order_is_inverted_at_a_watermark,),
    ),
)
