"""Tests of events compared with their records, on tiny frames."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812

from shieldtx.brokers.partitioning import partition_of
from shieldtx.domain.states import OutboxStatus
from shieldtx.reconcile.facts import VOCABULARY, Fact
from shieldtx.reconcile.request import EVERYTHING as ALL
from shieldtx.reconcile.request import ReconcileRequest, Selection, ServiceDatabase
from shieldtx.reconcile.rules import TOPICS
from shieldtx.reconcile.window import Window
from spark.compare import topic_transforms
from spark.compare.key_partition import partition_of as partition_column
from spark.compare.verdict_expression import verdict_of
from spark.sources.driver_frames import frame_of
from spark.sources.kafka_data_source import SCHEMA
from spark.sources.topic_completeness import EVERYTHING, HORIZONS, WHOLE

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
MARGIN = timedelta(minutes=15)
OUTBOX = (
    "upstream string, kind string, topic string, event_id string, key string, event_type string, "
    "causation_id string, upstream_status string, upstream_attempts int, created_at timestamp, "
    "published_at timestamp, upstream_ahead boolean, upstream_moved_at timestamp"
)


def before(minutes):
    return NOON - timedelta(minutes=minutes)


def written(spark, *rows):
    """Return outbox rows: by default written an hour ago and settled at once."""
    filled = []
    for row in rows:
        created = row.get("created_at", before(60))
        status = row.get("upstream_status", "PROCESSED")
        settled = row.get("published_at", created if OutboxStatus(status) in SETTLED else None)
        defaults = {
            "upstream": "orders",
            "kind": "COMMIT",
            "topic": "t",
            "key": "k",
            "event_type": "placed",
            "causation_id": None,
            "upstream_status": status,
            "upstream_attempts": 1,
            "created_at": created,
            "published_at": settled,
            "upstream_ahead": False,
            "upstream_moved_at": settled or created,
        }
        filled.append({**defaults, **row})
    return frame(spark, OUTBOX, filled)


SETTLED = {OutboxStatus.PROCESSED, OutboxStatus.FAILED, OutboxStatus.DISCARDED}


def sent(spark, *rows):
    """Return records in the order of their offsets: by default sent an hour ago."""
    filled = []
    for offset, row in enumerate(rows):
        at = row.get("sent_at", before(60))
        defaults = {
            "topic": "t",
            "kind": "COMMIT",
            "partition": 0,
            "offset": offset,
            "sent_at": at,
            "source": "orders",
            "key": "k",
            "event_type": "placed",
            "causation_id": None,
            "written_at": (at or before(60)).isoformat(),
            "problem": None,
        }
        filled.append({**defaults, **row})
    return frame(spark, SCHEMA, filled)


def frame(spark, schema, rows):
    columns = [field.split()[0] for field in schema.split(", ")]
    return spark.createDataFrame([tuple(row[c] for c in columns) for row in rows], schema)


def horizons(spark, *since, topic="t", as_many=EVERYTHING):
    """Return since when each partition of a topic is complete, and since when there are as many."""
    told = [when for when in since if when is not None]
    whole = max(told) if len(told) == len(since) else None
    places = [*enumerate(since), (WHOLE, whole)]
    rows = [(topic, "COMMIT", n, len(since), when, as_many) for n, when in places]
    return frame_of(spark, HORIZONS, rows)


def judge(spark, outbox, records, since=None, *, window=None, selection=ALL):
    request = ReconcileRequest(
        services=(ServiceDatabase(name="orders", url=""), ServiceDatabase(name="stock", url="")),
        folder=Path("/nowhere"),
        selection=selection,
        margin=MARGIN,
    )
    window = window or Window(watermark=NOON)
    return topic_transforms.judged(
        outbox,
        records,
        since or horizons(spark, EVERYTHING),
        request=request,
        windows={"orders": window, "stock": window},
    )


def verdicts(spark, outbox, records, *arguments, **changes):
    """Return verdicts by event."""
    rows = judge(spark, outbox, records, *arguments, **changes).collect()
    found = {row.event_id: row.verdict for row in rows}
    assert len(found) == len(rows)
    return found


def test_spark_and_python_agree_on_all_combinations_of_facts(spark):
    every = list(product(*(VOCABULARY[fact] for fact in TOPICS.facts)))
    types = ["string" if fact is Fact.UPSTREAM else "boolean" for fact in TOPICS.facts]
    schema = ", ".join(f"{f.value} {t}" for f, t in zip(TOPICS.facts, types, strict=True))
    facts = spark.createDataFrame([tuple(map(plain, values)) for values in every], schema)
    judged = facts.select("*", verdict_of(TOPICS).alias("v")).collect()
    by_spark = {tuple(row[: len(TOPICS.facts)]): row.v for row in judged}
    by_python = {
        tuple(map(plain, values)): TOPICS.judge(dict(zip(TOPICS.facts, values, strict=True))).value
        for values in every
    }
    assert len(by_python) == 8 * 2**5
    assert by_spark == by_python
    assert set(by_python.values()) == {verdict.value for verdict in TOPICS.verdicts}


def plain(value):
    return value.value if isinstance(value, OutboxStatus) else value


def test_each_event_finds_its_record(spark):
    found = verdicts(
        spark,
        written(
            spark,
            {"event_id": "there"},
            {"event_id": "lost"},
            {"event_id": "twice"},
            {"event_id": "acknowledged", "upstream_status": "PROCESSING"},
            {"event_id": "waiting", "upstream_status": "INIT"},
            {"event_id": "cancelled", "upstream_status": "DISCARDED"},
            {"event_id": "refused", "upstream_status": "FAILED"},
        ),
        sent(
            spark,
            {"event_id": "there"},
            {"event_id": "twice"},
            {"event_id": "ghost"},
            {"event_id": "acknowledged"},
            {"event_id": "twice"},
            {"event_id": "refused"},
        ),
    )
    assert found == {
        "there": "ON_TOPIC",
        "lost": "ABSENT_FROM_TOPIC",
        "twice": "DUPLICATE_RECORDS",
        "acknowledged": "ON_TOPIC",
        "waiting": "NOT_ON_TOPIC",
        "cancelled": "NOT_ON_TOPIC",
        "refused": "STATUS_DISAGREES",
        "ghost": "RECORD_WITHOUT_ROW",
    }


def test_a_record_counts_for_its_own_source_topic_and_kind_alone(spark):
    rows = judge(
        spark,
        written(spark, {"event_id": "e"}),
        sent(
            spark,
            {"event_id": "e", "source": "stock"},
            {"event_id": "e", "topic": "u"},
            {"event_id": "e", "kind": "ROLLBACK"},
        ),
        horizons(spark, EVERYTHING).union(horizons(spark, EVERYTHING, topic="u")),
    ).collect()
    assert {(row.upstream, row.topic, row.kind): row.verdict for row in rows} == {
        ("orders", "t", "COMMIT"): "ABSENT_FROM_TOPIC",
        ("stock", "t", "COMMIT"): "RECORD_WITHOUT_ROW",
        ("orders", "u", "COMMIT"): "RECORD_WITHOUT_ROW",
        ("orders", "t", "ROLLBACK"): "RECORD_WITHOUT_ROW",
    }


def test_events_of_topics_that_were_not_read_are_not_judged(spark):
    outbox = written(spark, {"event_id": "e"}, {"event_id": "f", "topic": "unread"})
    assert verdicts(spark, outbox, sent(spark)) == {"e": "ABSENT_FROM_TOPIC"}


@pytest.mark.parametrize(
    ("created", "verdict"),
    [
        (before(46), "BEFORE_TOPIC"),
        (before(45) - timedelta(microseconds=1), "BEFORE_TOPIC"),
        (before(45), "ABSENT_FROM_TOPIC"),
        (before(1), "ABSENT_FROM_TOPIC"),
    ],
)
def test_event_older_than_the_complete_topic_is_not_missed(spark, created, verdict):
    outbox = written(spark, {"event_id": "e", "created_at": created, "published_at": created})
    found = verdicts(spark, outbox, sent(spark), horizons(spark, before(60)))
    assert found == {"e": verdict}


def test_horizon_is_that_of_the_partition_of_the_key(spark):
    keys = {partition_of(key.encode(), 2): key for key in map(str, range(20))}
    found = verdicts(
        spark,
        written(
            spark,
            {"event_id": "in the whole one", "key": keys[0]},
            {"event_id": "in the emptied one", "key": keys[1]},
            {"event_id": "in any", "key": None},
        ),
        sent(spark),
        horizons(spark, EVERYTHING, None),
    )
    assert found == {
        "in the whole one": "ABSENT_FROM_TOPIC",
        "in the emptied one": "BEFORE_TOPIC",
        "in any": "BEFORE_TOPIC",
    }


@pytest.mark.parametrize(
    ("published", "verdict"),
    [
        (before(30) - timedelta(microseconds=1), "BEFORE_TOPIC"),
        (before(30), "ABSENT_FROM_TOPIC"),
    ],
)
def test_a_delayed_event_is_missed_where_it_was_sent(spark, published, verdict):
    row = {"event_id": "e", "created_at": before(9_000), "published_at": published}
    failed = row | {"event_id": "f", "upstream_status": "FAILED"}
    found = verdicts(spark, written(spark, row, failed), sent(spark), horizons(spark, before(60)))
    assert found == {"e": verdict, "f": "NOT_ON_TOPIC"}


@pytest.mark.parametrize(
    ("created", "verdict"),
    [
        # The event may be on one of the two older partitions, which have lost their beginnings.
        (before(400), "BEFORE_TOPIC"),
        (before(200), "ABSENT_FROM_TOPIC"),
        (before(30), "ABSENT_FROM_TOPIC"),
    ],
)
def test_added_partition_lacks_no_earlier_records(spark, created, verdict):
    key = next(key for key in map(str, range(50)) if partition_of(key.encode(), 3) == 2)
    row = {"event_id": "e", "key": key, "created_at": created, "published_at": created}
    # The third partition is complete since it was added: 230 minutes ago, by its first record.
    since = horizons(spark, before(100), before(90), EVERYTHING, as_many=before(230))
    assert verdicts(spark, written(spark, row), sent(spark), since) == {"e": verdict}


def test_a_partition_without_records_may_just_have_been_added(spark):
    key = next(key for key in map(str, range(50)) if partition_of(key.encode(), 2) == 1)
    row = {"event_id": "e", "key": key, "created_at": before(200), "published_at": before(200)}
    outbox, records = written(spark, row), sent(spark)
    lost_one = horizons(spark, before(100), EVERYTHING, as_many=None)
    whole = horizons(spark, EVERYTHING, EVERYTHING, as_many=None)
    assert verdicts(spark, outbox, records, lost_one) == {"e": "BEFORE_TOPIC"}
    assert verdicts(spark, outbox, records, whole) == {"e": "ABSENT_FROM_TOPIC"}


@pytest.mark.parametrize(
    ("written_at", "sent_at", "verdict", "is_ambiguous"),
    [
        # Not a delayed event whose row was purged: that row would have been settled later.
        (before(600).isoformat(), before(29), "TOO_OLD", True),
        (before(31).isoformat(), before(30), "TOO_OLD", True),
        (before(600).isoformat(), before(31), "TOO_OLD", False),
        (before(600).isoformat(), before(-1), "IN_FLIGHT", False),
        (before(30).isoformat(), before(29), "RECORD_WITHOUT_ROW", False),
        ("yesterday", before(29), "RECORD_WITHOUT_ROW", False),
    ],
)
def test_recent_record_of_an_old_event_without_row_is_ambiguous(
    spark, written_at, sent_at, verdict, is_ambiguous
):
    records = sent(spark, {"event_id": "e", "written_at": written_at, "sent_at": sent_at})
    window = Window(horizon=before(30), watermark=NOON)
    (row,) = judge(spark, written(spark), records, window=window).collect()
    assert (row.verdict, row.ambiguous) == (verdict, is_ambiguous)


def test_missing_record_is_ambiguous_if_last_partition_is_empty(spark):
    """The last partition has lost its beginning and is empty: nothing shows when it was added."""
    first, last = (
        next(key for key in map(str, range(50)) if partition_of(key.encode(), 2) == number)
        for number in (0, 1)
    )
    outbox = written(
        spark,
        {"event_id": "missed", "key": first},
        {"event_id": "recorded", "key": first},
        {"event_id": "before", "key": first, "created_at": before(110)},
        {
            "event_id": "sent late",
            "key": first,
            "created_at": before(110),
            "published_at": before(60),
        },
        {"event_id": "of the last", "key": last},
        {"event_id": "keyless", "key": None},
        {"event_id": "young", "key": first, "upstream_moved_at": NOON},
        {"event_id": "failed", "key": first, "upstream_status": "FAILED"},
    )
    records = sent(spark, {"event_id": "recorded", "key": first})

    rows = judge(spark, outbox, records, horizons(spark, before(100), None, as_many=None)).collect()
    known = judge(spark, outbox, records, horizons(spark, before(100), None, as_many=before(200)))

    assert {row.event_id for row in rows if row.ambiguous} == {"missed", "sent late"}
    assert {row.verdict for row in rows if row.ambiguous} == {"BEFORE_TOPIC"}
    absent = {row.event_id for row in known.collect() if row.verdict == "ABSENT_FROM_TOPIC"}
    assert absent == {"missed", "sent late"}
    assert known.where("ambiguous").count() == 0


def test_a_young_row_or_record_is_in_flight(spark):
    found = verdicts(
        spark,
        written(
            spark,
            {"event_id": "young row", "upstream_moved_at": NOON},
            {"event_id": "young record", "upstream_status": "FAILED"},
            {"event_id": "old", "upstream_moved_at": NOON - timedelta(microseconds=1)},
        ),
        sent(
            spark,
            {"event_id": "young record", "sent_at": NOON},
            {"event_id": "young ghost", "sent_at": NOON, "written_at": before(60).isoformat()},
            {"event_id": "ghost without a time", "sent_at": None},
        ),
    )
    assert found.pop("old") == "ABSENT_FROM_TOPIC"
    assert set(found.values()) == {"IN_FLIGHT"}


def test_without_a_watermark_only_final_ends_are_judged(spark):
    found = verdicts(
        spark,
        written(spark, {"event_id": "there"}, {"event_id": "lost"}),
        sent(spark, {"event_id": "there"}, {"event_id": "ghost"}),
        window=Window(obstacle="blind"),
    )
    assert found == {"there": "ON_TOPIC", "lost": "IN_FLIGHT", "ghost": "IN_FLIGHT"}


def test_record_whose_row_may_have_been_purged_is_not_a_ghost(spark):
    found = verdicts(
        spark,
        written(spark),
        sent(
            spark,
            {"event_id": "old", "sent_at": before(50)},
            {"event_id": "old by its own word", "written_at": before(50).isoformat()},
            {"event_id": "young", "sent_at": before(29), "written_at": before(29).isoformat()},
            *({"event_id": text, "written_at": text} for text in NO_TIMES),
        ),
        window=Window(horizon=before(30), watermark=NOON),
    )
    assert found == {
        "old": "TOO_OLD",
        "old by its own word": "TOO_OLD",
        "young": "RECORD_WITHOUT_ROW",
    } | dict.fromkeys(NO_TIMES, "TOO_OLD")


NO_TIMES = (
    "yesterday",
    "now",
    "epoch",
    "2026-01-15",
    "+200000-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "-4000-01-01T00:00:00Z",
    "2026-13-45T00:00:00Z",
)


def test_a_record_whose_row_was_not_selected_is_not_judged(spark):
    records = sent(
        spark,
        {"event_id": "before", "written_at": before(60).isoformat()},
        {"event_id": "in", "written_at": before(30).isoformat()},
        {"event_id": "after", "written_at": before(10).isoformat()},
    )
    window = Selection(written_since=before(40), written_until=before(10))
    assert verdicts(spark, written(spark), records, selection=window) == {
        "in": "RECORD_WITHOUT_ROW"
    }
    moved = Selection(moved_since={"orders": before(30)})
    found = verdicts(spark, written(spark), records, selection=moved)
    assert found == {"in": "RECORD_WITHOUT_ROW", "after": "RECORD_WITHOUT_ROW"}
    # Written before the horizon, and sent since.
    late = sent(
        spark,
        {"event_id": "e", "written_at": before(31).isoformat(), "sent_at": before(29)},
        {"event_id": "old", "written_at": before(31).isoformat(), "sent_at": before(31)},
    )
    found = verdicts(spark, written(spark), late, selection=moved)
    assert found == {"e": "RECORD_WITHOUT_ROW"}
    # The row of "before" has moved since. The other row is there for the order of events alone.
    rows = written(spark, {"event_id": "before", "published_at": before(30)}, {"event_id": "old"})
    assert verdicts(spark, rows, records, selection=moved)["before"] == "ON_TOPIC"
    assert "old" not in verdicts(spark, rows, records, selection=moved)


def in_order(spark, outbox, records, since=None):
    found = verdicts(spark, outbox, records, since)
    return {event for event, verdict in found.items() if verdict == "ORDER_INVERTED"}


APART = (
    {"event_id": "first", "created_at": before(60)},
    {"event_id": "second", "created_at": before(55)},
)


def test_event_settled_before_a_later_one_is_written_comes_first(spark):
    outbox = written(spark, *APART)
    right = sent(spark, {"event_id": "first"}, {"event_id": "second"})
    wrong = sent(spark, {"event_id": "second"}, {"event_id": "first"})
    assert in_order(spark, outbox, right) == set()
    assert in_order(spark, outbox, wrong) == {"first"}


def test_each_overtaken_event_is_reported(spark):
    rows = [{"event_id": f"e{n}", "created_at": before(60 - n)} for n in range(4)]
    records = sent(spark, *({"event_id": f"e{n}"} for n in (0, 3, 1, 2)))
    assert in_order(spark, written(spark, *rows), records) == {"e1", "e2"}


def test_repeated_records_change_no_order(spark):
    records = sent(spark, *({"event_id": e} for e in ("first", "second", "first", "second")))
    assert in_order(spark, written(spark, *APART), records) == set()


@pytest.mark.parametrize(
    "late",
    [
        # The transaction committed late, or the event was delayed, retried or replayed. In all
        # these cases an earlier row may settle after a later one was written.
        {"published_at": before(50)},
        {"published_at": before(55)},
        {"published_at": before(55) - timedelta(seconds=10)},
        # No broker has acknowledged the event.
        {"upstream_status": "FAILED"},
        {"upstream_status": "INIT"},
        # Another key, or no key.
        {"key": None},
        {"topic": "u"},
    ],
)
def test_events_that_may_be_sent_later_are_not_inversions(spark, late):
    first, second = APART
    outbox = written(spark, {**first, **late}, second)
    about = {name: late[name] for name in ("key", "topic") if name in late}
    records = sent(spark, {"event_id": "second"}, {"event_id": "first", **about})
    everything = horizons(spark, EVERYTHING).union(horizons(spark, EVERYTHING, topic="u"))
    assert in_order(spark, outbox, records, everything) == set()


def test_partitions_are_not_compared_with_each_other(spark):
    outbox = written(spark, *APART)
    elsewhere = sent(spark, {"event_id": "second"}, {"event_id": "first", "partition": 1})
    moved = sent(
        spark,
        {"event_id": "first", "partition": 1},
        {"event_id": "second"},
        {"event_id": "first", "sent_at": before(20)},
    )
    two = horizons(spark, EVERYTHING, EVERYTHING)
    assert in_order(spark, outbox, elsewhere, two) == set()
    assert in_order(spark, outbox, moved, two) == set()


def test_possibly_deleted_first_record_is_not_an_inversion(spark):
    outbox = written(spark, *APART)
    records = sent(spark, {"event_id": "second"}, {"event_id": "first"})
    assert in_order(spark, outbox, records, horizons(spark, before(74))) == set()
    assert in_order(spark, outbox, records, horizons(spark, before(75))) == {"first"}


def test_an_inversion_after_the_watermark_may_be_half_seen(spark):
    outbox = written(spark, *APART)
    young = sent(spark, {"event_id": "second"}, {"event_id": "first", "sent_at": NOON})
    assert in_order(spark, outbox, young) == set()


def test_judged_row_has_all_known_columns(spark):
    rows = judge(
        spark,
        written(spark, {"event_id": "row", "causation_id": "cause", "upstream_attempts": 3}),
        sent(
            spark,
            {"event_id": "row", "partition": 3, "offset": 7},
            {"event_id": "ghost", "event_type": "odd", "causation_id": "other", "offset": 9},
        ),
    ).collect()
    times = {"received_at": None, "settled_at": None, "downstream_moved_at": None}
    told = {row.event_id: row.asDict() for row in rows}
    both = {
        "kind": "COMMIT",
        "upstream": "orders",
        "downstream": "(topics)",
        "consumer_group": "t",
        "topic": "t",
        "downstream_status": None,
        "attempts": None,
        "unlisted": False,
        "ambiguous": False,
        "ahead": False,
    }
    for row in told.values():
        for name in ("created_at", "published_at", "upstream_moved_at"):
            row[name] = row[name] and row[name].astimezone(UTC)
    assert told == {
        "row": {
            **both,
            **times,
            "event_id": "row",
            "event_type": "placed",
            "causation_id": "cause",
            "upstream_status": "PROCESSED",
            "upstream_attempts": 3,
            "created_at": before(60),
            "published_at": before(60),
            "upstream_moved_at": before(60),
            "record": "3:7",
            "verdict": "ON_TOPIC",
        },
        "ghost": {
            **both,
            **times,
            "event_id": "ghost",
            "event_type": "odd",
            "causation_id": "other",
            "upstream_status": None,
            "upstream_attempts": None,
            "created_at": before(60),
            "published_at": None,
            "upstream_moved_at": None,
            "record": "0:9",
            "verdict": "RECORD_WITHOUT_ROW",
        },
    }


def test_spark_finds_the_partition_of_a_key_as_the_relay_does(spark):
    chance = random.Random(20260115)
    letters = "abc-0189 äß\u20ac\U0001f9c0\x7f"
    keys = ["", "a", "ab", "abc", "abcd", "x" * 1000, "0" * 36]
    keys += ["".join(chance.choices(letters, k=chance.randrange(40))) for _ in range(2_000)]
    cases = [(key, chance.choice([1, 3, 12, 97])) for key in keys]
    frame = spark.createDataFrame([*cases, (None, 3)], "key string, partitions int")
    rows = frame.withColumn("p", partition_column(F.col("key"), F.col("partitions"))).collect()
    assert len(rows) == len(cases) + 1
    for row in rows:
        expected = None if row.key is None else partition_of(row.key.encode(), row.partitions)
        assert row.p == expected, row
