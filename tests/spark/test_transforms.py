"""What Spark does with rows, on tiny frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from shieldtx.reconcile.expectations import Expectation, ExpectedGroup
from shieldtx.reconcile.request import Flow, ServiceDatabase
from shieldtx.reconcile.rules import VOCABULARY, Fact, Verdict, judge
from shieldtx.reconcile.window import Window
from shieldtx.states import InboxStatus, OutboxStatus, TxKind
from spark import transforms

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
ORDERS = ServiceDatabase(name="orders", url="postgresql://none")
STOCK = ServiceDatabase(name="stock", url="postgresql://none")
FORTH = Flow(kind=TxKind.COMMIT, upstream=ORDERS, downstream=STOCK)
BACK = Flow(kind=TxKind.ROLLBACK, upstream=STOCK, downstream=ORDERS)
RESERVE = Expectation(groups=(ExpectedGroup(name="reserve"),), names=("reserve",))
WINDOW = Window(watermark=NOON)

OUTBOX = (
    "event_id string, topic string, event_type string, causation_id string, status string, "
    "created_at timestamp, settled_at timestamp, moved_at timestamp"
)
INBOX = (
    "event_id string, consumer_group string, topic string, event_type string, "
    "causation_id string, compensated_id string, status string, event_time timestamp, "
    "received_at timestamp, settled_at timestamp, moved_at timestamp"
)


def before(minutes):
    return NOON - timedelta(minutes=minutes)


def sent(spark, *rows):
    defaults = {"topic": "t", "event_type": "t", "causation_id": None, "status": "PROCESSED"}
    times = {"created_at": before(30), "settled_at": before(29), "moved_at": before(29)}
    return frame(spark, OUTBOX, {**defaults, **times}, rows)


def received(spark, *rows):
    defaults = {
        "consumer_group": "reserve",
        "topic": "t",
        "event_type": "t",
        "status": "PROCESSED",
        "causation_id": None,
        "compensated_id": None,
        "event_time": before(30),
        "received_at": before(28),
        "settled_at": before(27),
        "moved_at": before(27),
    }
    return frame(spark, INBOX, defaults, rows)


def frame(spark, schema, defaults, rows):
    columns = [field.split()[0] for field in schema.split(", ")]
    filled = [{**defaults, **row} for row in rows]
    return spark.createDataFrame([tuple(row[c] for c in columns) for row in filled], schema)


def compare(spark, outbox, inbox, answers=None, *, flow=FORTH, expectation=RESERVE, window=WINDOW):
    """Return the verdict by event and group."""
    if answers is None:
        answers = transforms.rollbacks_of(sent(spark))
    rows = transforms.compared(
        outbox, inbox, answers, flow=flow, expectation=expectation, window=window
    ).collect()
    found = {(row.event_id, row.consumer_group): row.verdict for row in rows}
    assert len(found) == len(rows)
    return found


def test_spark_and_plain_python_agree_on_every_combination_of_facts(spark):
    schema = StructType(
        [
            *(StructField(fact, StringType()) for fact in list(Fact)[:3]),
            *(StructField(fact, BooleanType()) for fact in list(Fact)[3:]),
        ]
    )
    every = [c for c in product(*VOCABULARY.values()) if c[1:3] != (None, None)]
    facts = spark.createDataFrame([tuple(map(plain, values)) for values in every], schema)
    judged = facts.select("*", transforms.verdict_of({f: F.col(f) for f in Fact}).alias("v"))
    by_spark = {tuple(row[:6]): row.v for row in judged.collect()}
    by_python = {
        tuple(map(plain, values)): judge(**dict(zip(Fact, values, strict=True))).value
        for values in every
    }
    assert len(by_python) == 880
    assert by_spark == by_python


def plain(value):
    return value.value if isinstance(value, TxKind | OutboxStatus | InboxStatus) else value


def test_each_event_is_paired_with_the_row_of_its_group(spark):
    found = compare(
        spark,
        sent(spark, {"event_id": "both"}, {"event_id": "lost"}),
        received(spark, {"event_id": "both"}, {"event_id": "ghost"}),
    )
    assert found == {
        ("both", "reserve"): "MATCHED",
        ("lost", "reserve"): "MISSING_DOWNSTREAM",
        ("ghost", "reserve"): "UNKNOWN_UPSTREAM",
    }


def test_every_expected_group_is_judged_on_its_own(spark):
    two = Expectation(
        groups=(ExpectedGroup(name="reserve"), ExpectedGroup(name="mail")),
        names=("mail", "reserve"),
    )
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}),
        received(spark, {"event_id": "e", "consumer_group": "mail"}),
        expectation=two,
    )
    assert found == {("e", "mail"): "MATCHED", ("e", "reserve"): "MISSING_DOWNSTREAM"}


def test_a_group_is_only_missed_at_topics_and_types_that_it_should_receive(spark):
    picky = Expectation(
        groups=(ExpectedGroup(name="reserve", topics=("t",), event_types=("placed", "changed")),),
        names=("reserve",),
    )
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "placed", "event_type": "placed"},
            {"event_id": "paid", "event_type": "paid"},
            {"event_id": "elsewhere", "event_type": "placed", "topic": "other"},
        ),
        received(spark),
        expectation=picky,
    )
    assert found == {("placed", "reserve"): "MISSING_DOWNSTREAM"}


def test_what_a_group_received_without_being_expected_to_still_finds_its_event(spark):
    nobody = Expectation(groups=(), names=("reserve",))
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}, {"event_id": "unwanted"}),
        received(spark, {"event_id": "e"}),
        expectation=nobody,
    )
    assert found == {("e", "reserve"): "MATCHED"}


def test_without_any_group_nothing_is_compared(spark):
    nobody = Expectation(groups=(), names=())
    assert compare(spark, sent(spark, {"event_id": "e"}), received(spark), expectation=nobody) == {}


@pytest.mark.parametrize(
    ("moved", "verdict"),
    [
        (NOON - timedelta(microseconds=1), "MISSING_DOWNSTREAM"),
        (NOON, "IN_FLIGHT"),
        (NOON + timedelta(microseconds=1), "IN_FLIGHT"),
    ],
)
def test_the_watermark_is_exact_to_the_microsecond(spark, moved, verdict):
    found = compare(spark, sent(spark, {"event_id": "e", "moved_at": moved}), received(spark))
    assert found == {("e", "reserve"): verdict}


def test_a_young_row_on_either_side_is_in_flight(spark):
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "up", "status": "INIT", "moved_at": before(-1)},
            {"event_id": "down", "status": "INIT"},
        ),
        received(
            spark,
            {"event_id": "up", "status": "PROCESSED"},
            {"event_id": "down", "status": "INIT", "moved_at": before(-1)},
            {"event_id": "ghost", "moved_at": before(-1)},
        ),
    )
    assert set(found.values()) == {"IN_FLIGHT"}
    assert len(found) == 3


def test_without_a_watermark_only_final_ends_are_judged(spark):
    found = compare(
        spark,
        sent(spark, {"event_id": "both"}, {"event_id": "lost"}),
        received(spark, {"event_id": "both"}),
        window=Window(obstacle="blind"),
    )
    assert found == {("both", "reserve"): "MATCHED", ("lost", "reserve"): "IN_FLIGHT"}


def test_a_row_that_may_have_been_purged_is_not_missed(spark):
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "old", "settled_at": before(90)},
            {"event_id": "young", "settled_at": before(50)},
            {"event_id": "delayed", "created_at": before(90), "settled_at": before(50)},
        ),
        received(
            spark,
            {"event_id": "old-ghost", "event_time": before(90), "received_at": before(50)},
            {"event_id": "late-ghost", "event_time": before(50), "received_at": before(90)},
            {"event_id": "ghost", "event_time": before(51), "received_at": before(50)},
        ),
        window=Window(horizon=before(60), watermark=NOON),
    )
    assert {event: verdict for (event, _), verdict in found.items()} == {
        "old": "TOO_OLD",
        "young": "MISSING_DOWNSTREAM",
        "delayed": "MISSING_DOWNSTREAM",
        "old-ghost": "TOO_OLD",
        "late-ghost": "TOO_OLD",
        "ghost": "UNKNOWN_UPSTREAM",
    }


def test_what_was_given_up_is_answered_by_a_rollback_of_that_event(spark):
    gave_up = {"status": "MAX_RECONSUMED"}
    rollbacks = sent(
        spark,
        {"event_id": "r1", "causation_id": "answered", "status": "INIT"},
        {"event_id": "r2", "causation_id": "answered"},
        {"event_id": "r3", "causation_id": "something else"},
    )
    found = compare(
        spark,
        sent(spark, {"event_id": "answered"}, {"event_id": "open"}),
        received(spark, {"event_id": "answered"} | gave_up, {"event_id": "open"} | gave_up),
        transforms.rollbacks_of(rollbacks),
    )
    assert found == {
        ("answered", "reserve"): "REFUSED",
        ("open", "reserve"): "NEITHER_EFFECT_NOR_COMPENSATION",
    }


def test_one_compensation_answers_all_rollbacks_of_an_event_in_its_group(spark):
    inbox = received(
        spark,
        {"event_id": "first", "causation_id": "e", "compensated_id": "e"},
        {"event_id": "second", "causation_id": "e"},
        {"event_id": "second", "causation_id": "e", "consumer_group": "mail"},
        {"event_id": "alone", "causation_id": "f"},
    )
    outbox = sent(
        spark,
        {"event_id": "first", "causation_id": "e"},
        {"event_id": "second", "causation_id": "e"},
        {"event_id": "alone", "causation_id": "f"},
    )
    found = compare(
        spark,
        outbox,
        inbox,
        transforms.compensations(inbox),
        flow=BACK,
        expectation=Expectation(groups=(ExpectedGroup(name="reserve"),), names=("mail", "reserve")),
    )
    assert found == {
        ("first", "reserve"): "MATCHED",
        ("second", "reserve"): "MATCHED",
        ("second", "mail"): "ROLLBACK_NOT_COMPENSATED",
        ("alone", "reserve"): "ROLLBACK_NOT_COMPENSATED",
    }


def test_a_compared_row_tells_both_sides(spark):
    (row,) = transforms.compared(
        sent(spark, {"event_id": "e", "topic": "orders", "event_type": "placed"}),
        received(spark, {"event_id": "e"}),
        transforms.rollbacks_of(sent(spark)),
        flow=FORTH,
        expectation=RESERVE,
        window=WINDOW,
    ).collect()
    told = row.asDict()
    times = {name: told.pop(name) for name in list(told) if name.endswith("_at")}
    assert told == {
        "kind": "COMMIT",
        "upstream": "orders",
        "downstream": "stock",
        "consumer_group": "reserve",
        "event_id": "e",
        "topic": "orders",
        "event_type": "placed",
        "causation_id": None,
        "verdict": "MATCHED",
        "upstream_status": "PROCESSED",
        "downstream_status": "PROCESSED",
    }
    assert {name: when.astimezone(UTC) for name, when in times.items()} == {
        "created_at": before(30),
        "published_at": before(29),
        "received_at": before(28),
        "settled_at": before(27),
    }


def judged(spark, *verdicts):
    """Make compared rows: the earlier in the list, the older."""
    rows = [
        ("COMMIT", "orders", "stock", "reserve", f"{n:03}", before(60 - n), None, verdict.value)
        for n, verdict in enumerate(verdicts)
    ]
    return spark.createDataFrame(
        rows,
        "kind string, upstream string, downstream string, consumer_group string, "
        "event_id string, created_at timestamp, received_at timestamp, verdict string",
    )


def test_rows_are_counted_by_pair_and_verdict(spark):
    rows = judged(spark, Verdict.MATCHED, Verdict.STUCK, Verdict.MATCHED)
    counts = {
        (row.consumer_group, row.verdict): row.rows for row in transforms.counted(rows).collect()
    }
    assert counts == {("reserve", "MATCHED"): 2, ("reserve", "STUCK"): 1}


def test_clean_rows_are_not_listed(spark):
    listed = transforms.listed(judged(spark, *Verdict)).collect()
    assert {row.verdict for row in listed} == {v.value for v in Verdict if v.is_listed}


def test_the_earliest_rows_of_each_mismatch_are_shown(spark):
    rows = judged(
        spark,
        *[Verdict.STUCK, Verdict.IN_FLIGHT, Verdict.UNKNOWN_UPSTREAM],
        *[Verdict.STUCK, Verdict.STUCK, Verdict.MATCHED],
    )
    shown = [(row.verdict, row.event_id) for row in transforms.first_rows(rows, 2).collect()]
    assert shown == [("STUCK", "000"), ("STUCK", "003"), ("UNKNOWN_UPSTREAM", "002")]
    assert transforms.first_rows(rows, 0).collect() == []
