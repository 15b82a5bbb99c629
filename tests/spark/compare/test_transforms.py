"""Tests of Spark's transformations of rows, on tiny frames."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that PySpark programs give it
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from shieldtx.domain.events import first_id_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.expectations import Route, Stream
from shieldtx.reconcile.facts import VOCABULARY
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.rules import PAIRS
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.window import Memory, Window
from spark.compare import transforms
from spark.compare.verdict_expression import verdict_of
from spark.sources.driver_frames import routes_frame, windows_frame

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
FORTH = Stream(kind=TxKind.COMMIT, upstream="orders", downstream="stock")
BACK = Stream(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders")
WINDOW = Window(watermark=NOON)

OUTBOX = (
    "event_id string, seq bigint, upstream string, kind string, causation_source string, "
    "causation_id string, topic string, event_type string, upstream_status string, "
    "upstream_attempts int, created_at timestamp, published_at timestamp, "
    "upstream_due_at timestamp, upstream_unconfirmed boolean, upstream_digest bigint, "
    "upstream_envelope bigint, "
    "bucket bigint, upstream_odd boolean, upstream_unlisted boolean, upstream_ahead boolean, "
    "upstream_moved_at timestamp"
)
INBOX = (
    "event_id string, seq bigint, upstream string, kind string, causation_source string, "
    "causation_id string, topic string, event_type string, consumer_group string, "
    "downstream string, downstream_status string, attempts int, event_time timestamp, "
    "received_at timestamp, settled_at timestamp, downstream_digest bigint, "
    "downstream_envelope bigint, downstream_overtaken boolean, downstream_owes boolean, "
    "bucket bigint, "
    "downstream_odd boolean, downstream_unlisted boolean, downstream_ahead boolean, "
    "downstream_moved_at timestamp"
)
ROLLBACKS = (
    "upstream string, downstream string, event_id string, answered_at timestamp, entitled boolean, "
    "answer_ahead boolean"
)
COMPENSATIONS = (
    "downstream string, consumer_group string, causation_id string, answered_at timestamp"
)


def before(minutes):
    return NOON - timedelta(minutes=minutes)


def id_of(when):
    """Return the id of an event that was written at that time."""
    return str(UUID(int=first_id_of(when.timestamp()).int | 7 << 76))


def sent(spark, *rows, stream=FORTH):
    defaults = {
        "seq": 1,
        "upstream": stream.upstream,
        "kind": stream.kind.value,
        "causation_source": stream.downstream,
        "causation_id": None,
        "topic": "t",
        "event_type": "t",
        "upstream_status": "PROCESSED",
        "upstream_attempts": 1,
        "created_at": before(30),
        "published_at": before(29),
        "upstream_due_at": before(30),
        "upstream_unconfirmed": False,
        "upstream_digest": 7,
        "upstream_envelope": 8,
        "bucket": 0,
        "upstream_odd": False,
        "upstream_unlisted": False,
        "upstream_ahead": False,
        "upstream_moved_at": before(29),
    }
    return frame(spark, OUTBOX, defaults, rows)


def received(spark, *rows, stream=FORTH):
    defaults = {
        "seq": 1,
        "upstream": stream.upstream,
        "kind": stream.kind.value,
        "causation_source": stream.downstream,
        "causation_id": None,
        "topic": "t",
        "event_type": "t",
        "consumer_group": "reserve",
        "downstream": stream.downstream,
        "downstream_status": "PROCESSED",
        "attempts": 1,
        "event_time": before(30),
        "received_at": before(28),
        "settled_at": before(27),
        "downstream_digest": 7,
        "downstream_envelope": 8,
        "downstream_overtaken": None,
        "downstream_owes": True,
        "bucket": 0,
        "downstream_odd": False,
        "downstream_unlisted": False,
        "downstream_ahead": False,
        "downstream_moved_at": before(27),
    }
    return frame(spark, INBOX, defaults, rows)


def rollbacks(spark, *rows):
    """Return rollbacks that stock has written for events of orders."""
    defaults = {
        "upstream": "orders",
        "downstream": "stock",
        "answered_at": before(26),
        "entitled": True,
        "answer_ahead": False,
    }
    return frame(spark, ROLLBACKS, defaults, rows)


def compensations(spark, *rows):
    """Return compensations in orders."""
    defaults = {"downstream": "orders", "consumer_group": "reserve", "answered_at": before(26)}
    return frame(spark, COMPENSATIONS, defaults, rows)


def frame(spark, schema, defaults, rows):
    columns = [field.split()[0] for field in schema.split(", ")]
    filled = [{**defaults, **row} for row in rows]
    assert {name for row in filled for name in row} <= set(columns)
    return spark.createDataFrame([tuple(row[c] for c in columns) for row in filled], schema)


def route(group="reserve", *, stream=FORTH, expected=True, limit=None, **names):
    of = stream.downstream if stream.kind is TxKind.ROLLBACK else None
    fields = {"topic": "t", "event_type": "t", "causation_source": of, **names}
    return Route(stream=stream, group=group, expected=expected, max_attempts=limit, **fields)


def rows_of(
    spark, outbox, inbox, *, routes=(), answers=None, window=WINDOW, stream=FORTH, memory=None
):
    pairs = transforms.paired(outbox, inbox, routes_frame(spark, routes or [route(stream=stream)]))
    if answers is None:
        answers = (rollbacks(spark), compensations(spark))
    memories = {} if memory is None else {stream.downstream: Memory(period=memory, since=NOON)}
    return transforms.judged(
        transforms.with_rollbacks(pairs, *answers), windows_frame(spark, {stream: window}, memories)
    )


def compare(spark, outbox, inbox, **given):
    """Return the verdict by event and group."""
    rows = rows_of(spark, outbox, inbox, **given).collect()
    found = {(row.event_id, row.consumer_group): row.verdict for row in rows}
    assert len(found) == len(rows)
    return found


def test_spark_and_python_agree_on_all_combinations_of_facts(spark):
    schema = StructType(
        [
            StructField(fact, BooleanType() if set(VOCABULARY[fact]) >= {True, False} else TEXT)
            for fact in PAIRS.facts
        ]
    )
    every = list(product(*(VOCABULARY[fact] for fact in PAIRS.facts)))
    facts = spark.createDataFrame([tuple(map(plain, values)) for values in every], schema)
    judged = facts.select("*", verdict_of(PAIRS).alias("v")).collect()
    by_spark = {tuple(row[: len(PAIRS.facts)]): row.v for row in judged}
    by_python = {
        tuple(map(plain, values)): PAIRS.judge(dict(zip(PAIRS.facts, values, strict=True))).value
        for values in every
    }
    assert len(by_python) == 2 * 8 * 8 * 3 * 2**9
    assert by_spark == by_python


TEXT = StringType()


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
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}),
        received(spark, {"event_id": "e", "consumer_group": "mail"}),
        routes=[route("reserve"), route("mail")],
    )
    assert found == {("e", "mail"): "MATCHED", ("e", "reserve"): "MISSING_DOWNSTREAM"}


def test_group_lacks_only_its_expected_topics_and_types(spark):
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "placed", "event_type": "placed"},
            {"event_id": "paid", "event_type": "paid"},
            {"event_id": "elsewhere", "event_type": "placed", "topic": "other"},
        ),
        received(spark),
        routes=[route(event_type="placed"), route(event_type="changed")],
    )
    assert found == {("placed", "reserve"): "MISSING_DOWNSTREAM"}


def test_unexpectedly_received_row_is_paired_with_its_event(spark):
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}, {"event_id": "unwanted"}),
        received(spark, {"event_id": "e"}),
        routes=[route(expected=False)],
    )
    assert found == {("e", "reserve"): "MATCHED"}


def test_without_any_group_nothing_is_compared(spark):
    elsewhere = [route(topic="other")]
    assert compare(spark, sent(spark, {"event_id": "e"}), received(spark), routes=elsewhere) == {}


@pytest.mark.parametrize(
    ("moved", "verdict"),
    [
        (NOON - timedelta(microseconds=1), "MISSING_DOWNSTREAM"),
        (NOON, "IN_FLIGHT"),
        (NOON + timedelta(microseconds=1), "IN_FLIGHT"),
    ],
)
def test_the_watermark_is_exact_to_the_microsecond(spark, moved, verdict):
    found = compare(
        spark, sent(spark, {"event_id": "e", "upstream_moved_at": moved}), received(spark)
    )
    assert found == {("e", "reserve"): verdict}


def test_a_young_row_on_either_side_is_in_flight(spark):
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "up", "upstream_status": "INIT", "upstream_moved_at": before(-1)},
            {"event_id": "down", "upstream_status": "INIT"},
        ),
        received(
            spark,
            {"event_id": "up"},
            {
                "event_id": "down",
                "downstream_status": "INIT",
                "downstream_moved_at": before(-1),
            },
            {"event_id": "ghost", "downstream_moved_at": before(-1)},
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
            {"event_id": "old", "published_at": before(90)},
            {"event_id": "young", "published_at": before(50)},
            {"event_id": "delayed", "created_at": before(90), "published_at": before(50)},
            # The group may have purged the effect of the first record.
            {
                "event_id": "sent twice",
                "created_at": before(90),
                "published_at": before(50),
                "upstream_unconfirmed": True,
            },
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
        "sent twice": "TOO_OLD",
        "old-ghost": "TOO_OLD",
        "late-ghost": "TOO_OLD",
        "ghost": "UNKNOWN_UPSTREAM",
    }


def test_given_up_event_is_matched_by_a_rollback_of_that_event(spark):
    gave_up = {"downstream_status": "MAX_RECONSUMED"}
    found = compare(
        spark,
        sent(spark, {"event_id": "answered"}, {"event_id": "open"}),
        received(spark, {"event_id": "answered"} | gave_up, {"event_id": "open"} | gave_up),
        answers=(
            rollbacks(spark, {"event_id": "answered"}, {"event_id": "something else"}),
            compensations(spark),
        ),
    )
    assert found == {
        ("answered", "reserve"): "REFUSED",
        ("open", "reserve"): "NEITHER_EFFECT_NOR_COMPENSATION",
    }


def test_uncalled_rollback_of_a_remaining_effect_is_a_mismatch(spark):
    young = {"answered_at": before(-1)}
    found = compare(
        spark,
        sent(spark, *({"event_id": e} for e in ("despite", "entitled", "young", "other"))),
        received(spark, *({"event_id": e} for e in ("despite", "entitled", "young", "other"))),
        answers=(
            rollbacks(
                spark,
                {"event_id": "despite", "entitled": False},
                {"event_id": "entitled"},
                {"event_id": "young", "entitled": False} | young,
                {"event_id": "other", "entitled": False, "downstream": "mail"},
            ),
            compensations(spark),
        ),
    )
    assert {event: verdict for (event, _), verdict in found.items()} == {
        "despite": "EFFECT_DESPITE_ROLLBACK",
        "entitled": "MATCHED",
        "young": "MATCHED",
        "other": "MATCHED",
    }


def test_payloads_and_envelopes_are_compared_by_their_digests(spark):
    nothing = {"downstream_digest": None, "downstream_envelope": None}
    tombstone = {"downstream_status": "FENCED"} | nothing
    found = compare(
        spark,
        sent(spark, *({"event_id": e} for e in ("same", "payload", "envelope", "fenced", "alone"))),
        received(
            spark,
            {"event_id": "same"},
            {"event_id": "payload", "downstream_digest": 8},
            {"event_id": "envelope", "downstream_envelope": 7},
            {"event_id": "fenced", "downstream_overtaken": True} | tombstone,
            {"event_id": "alone", "downstream_overtaken": False} | tombstone,
        ),
    )
    assert {event: verdict for (event, _), verdict in found.items()} == {
        "same": "MATCHED",
        "payload": "PAYLOAD_DIFFERS",
        "envelope": "ENVELOPE_DIFFERS",
        "fenced": "REFUSED",
        "alone": "STATUS_DISAGREES",
    }


@pytest.mark.parametrize(
    ("attempts", "limit", "verdict"),
    [(3, 3, "REFUSED"), (1, 3, "REFUSED"), (4, 3, "ATTEMPTS_DIFFER"), (99, None, "REFUSED")],
)
def test_attempts_are_compared_with_the_limit_of_the_group(spark, attempts, limit, verdict):
    row = {"event_id": "e", "downstream_status": "MAX_RECONSUMED", "attempts": attempts}
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}),
        received(spark, row),
        answers=(rollbacks(spark, {"event_id": "e"}), compensations(spark)),
        routes=[route(limit=limit)],
    )
    assert found == {("e", "reserve"): verdict}


@pytest.mark.parametrize(
    ("compensated", "verdict"),
    [
        ({"causation_id": "e", "answered_at": before(24)}, "EFFECT_DESPITE_ROLLBACK"),
        ({"causation_id": "e", "answered_at": before(22)}, "MATCHED"),
        ({"causation_id": "e", "answered_at": before(24), "consumer_group": "mail"}, "MATCHED"),
        ({"causation_id": "f", "answered_at": before(24)}, "MATCHED"),
    ],
)
def test_effect_after_its_groups_own_compensation_is_a_mismatch(spark, compensated, verdict):
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}),
        received(spark, {"event_id": "e", "settled_at": before(23)}),
        answers=(rollbacks(spark), compensations(spark, {"downstream": "stock"} | compensated)),
    )
    assert found == {("e", "reserve"): verdict}


def test_effect_compensated_by_its_group_is_not_despite_rollback(spark):
    """Nothing called for the rollback, and the effect is compensated."""
    undone = {"downstream": "stock", "causation_id": "e", "answered_at": before(22)}
    found = compare(
        spark,
        sent(spark, {"event_id": "e"}),
        received(
            spark,
            {"event_id": "e", "settled_at": before(23)},
            {"event_id": "e", "settled_at": before(23), "consumer_group": "mail"},
        ),
        answers=(
            rollbacks(spark, {"event_id": "e", "entitled": False}),
            compensations(spark, undone),
        ),
        routes=[route(), route("mail")],
    )
    assert found == {("e", "reserve"): "MATCHED", ("e", "mail"): "EFFECT_DESPITE_ROLLBACK"}


ELSEWHERE = Stream(kind=TxKind.ROLLBACK, upstream="mail", downstream="stock")
OF_ORDERS = {"causation_source": "orders", "causation_id": "e"}


@pytest.mark.parametrize(
    ("arrival", "verdict"),
    [
        (None, "MISSING_DOWNSTREAM"),
        ({"downstream_owes": True}, "ROLLBACK_NOT_COMPENSATED"),
        ({"downstream_owes": False}, "MATCHED"),
        ({"downstream_status": "DEAD"}, "PARKED"),
        ({"downstream_status": "DISCARDED"}, "DISCARDED"),
        ({"downstream_status": "INIT"}, "STUCK"),
    ],
)
def test_group_that_compensates_events_of_others_is_judged(spark, arrival, verdict):
    rows = [] if arrival is None else [{"event_id": "r"} | OF_ORDERS | arrival]
    found = compare(
        spark,
        sent(spark, {"event_id": "r"} | OF_ORDERS, stream=ELSEWHERE),
        received(spark, *rows, stream=ELSEWHERE),
        routes=[route(stream=ELSEWHERE, causation_source="orders")],
        stream=ELSEWHERE,
    )
    assert found == {("r", "reserve"): verdict}


@pytest.mark.parametrize(
    ("event", "changes", "verdict"),
    [
        (id_of(before(61)), {}, "TOO_OLD"),
        (id_of(before(59)), {}, "MATCHED"),
        # Not a UUIDv7: the event may be of any age.
        (id_of(before(59)).replace("-7", "-4", 1), {}, "TOO_OLD"),
        (id_of(before(61)), {"downstream_owes": False}, "MATCHED"),
        (id_of(before(61)), {"downstream_owes": True}, "ROLLBACK_NOT_COMPENSATED"),
        (id_of(before(61)), {"downstream_moved_at": before(-1)}, "IN_FLIGHT"),
    ],
)
def test_a_group_without_a_row_of_the_event_may_have_purged_it(spark, event, changes, verdict):
    """The rollback was settled without a compensation, and is younger than the event."""
    of_event = {"event_id": "r", "causation_source": "orders", "causation_id": event}
    found = compare(
        spark,
        sent(spark, of_event, stream=ELSEWHERE),
        received(spark, of_event | {"downstream_owes": None} | changes, stream=ELSEWHERE),
        routes=[route(stream=ELSEWHERE, causation_source="orders")],
        window=Window(horizon=before(60), watermark=NOON),
        stream=ELSEWHERE,
    )
    assert found == {("r", "reserve"): verdict}


def test_rollback_is_expected_of_groups_compensating_its_writer(spark):
    """Each event of a type that two services write has one writer."""
    found = compare(
        spark,
        sent(
            spark,
            {"event_id": "r"} | OF_ORDERS,
            {"event_id": "s", "causation_source": "shop"},
            {"event_id": "t", "causation_source": None},
            stream=ELSEWHERE,
        ),
        received(spark, stream=ELSEWHERE),
        routes=[route(stream=ELSEWHERE, causation_source="orders")],
        stream=ELSEWHERE,
    )
    assert found == {("r", "reserve"): "MISSING_DOWNSTREAM"}


def test_one_compensation_answers_all_rollbacks_of_an_event(spark):
    inbox = received(
        spark,
        {"event_id": "first", "causation_id": "e"},
        {"event_id": "second", "causation_id": "e"},
        {"event_id": "second", "causation_id": "e", "consumer_group": "mail"},
        {"event_id": "alone", "causation_id": "f"},
        stream=BACK,
    )
    outbox = sent(
        spark,
        {"event_id": "first", "causation_id": "e"},
        {"event_id": "second", "causation_id": "e"},
        {"event_id": "alone", "causation_id": "f"},
        stream=BACK,
    )
    found = compare(
        spark,
        outbox,
        inbox,
        answers=(rollbacks(spark), compensations(spark, {"causation_id": "e"})),
        stream=BACK,
        routes=[route(stream=BACK), route("mail", stream=BACK, expected=False)],
    )
    assert found == {
        ("first", "reserve"): "MATCHED",
        ("second", "reserve"): "MATCHED",
        ("second", "mail"): "ROLLBACK_NOT_COMPENSATED",
        ("alone", "reserve"): "ROLLBACK_NOT_COMPENSATED",
    }


def test_rollback_without_a_compensating_group_is_not_compared(spark):
    elsewhere = {"event_id": "r", "causation_id": "e", "causation_source": "elsewhere"}
    outbox = sent(spark, elsewhere, stream=BACK)
    assert not compare(spark, outbox, received(spark, stream=BACK), stream=BACK)


def test_compared_row_has_both_sides(spark):
    (row,) = rows_of(
        spark,
        sent(spark, {"event_id": "e", "topic": "orders", "event_type": "placed"}),
        received(spark, {"event_id": "e"}),
        routes=[route(topic="orders", event_type="placed")],
    ).collect()
    told = row.asDict()
    assert tuple(told) == transforms.ROW
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
        "upstream_attempts": 1,
        "attempts": 1,
        "record": None,
        "unlisted": False,
        "ambiguous": False,
        "ahead": False,
    }
    assert {name: when.astimezone(UTC) for name, when in times.items()} == {
        "created_at": before(30),
        "published_at": before(29),
        "received_at": before(28),
        "settled_at": before(27),
        "upstream_moved_at": before(29),
        "downstream_moved_at": before(27),
    }


def test_an_event_that_lacks_a_row_is_looked_up_on_that_side(spark):
    pairs = transforms.paired(
        sent(spark, {"event_id": "both"}, {"event_id": "sent"}),
        received(spark, {"event_id": "both"}, {"event_id": "received"}),
        routes_frame(spark, [route()]),
    )
    assert {tuple(row) for row in transforms.alone(pairs).collect()} == {
        ("upstream", "orders", "received"),
        ("downstream", "stock", "sent"),
    }


def test_a_window_is_of_the_times_of_writing(spark):
    ages = {f"{minutes}": before(minutes) for minutes in (60, 30, 10)}
    pairs = transforms.paired(
        sent(spark, *({"event_id": name, "created_at": when} for name, when in ages.items())),
        received(spark, {"event_id": "ghost", "event_time": before(45)}),
        routes_frame(spark, [route()]),
    )
    selection = Selection(written_since=before(60), written_until=before(10))
    found = {row.event_id for row in transforms.within(pairs, selection).collect()}
    assert found == {"60", "30", "ghost"}


def judged(spark, *verdicts):
    """Make compared rows, the oldest first."""
    rows = [
        (
            *("COMMIT", "orders", "stock", "reserve", f"{n:03}", before(60 - n), None),
            *("PROCESSED", "PROCESSED", verdict is Verdict.STUCK, False, False, verdict.value),
        )
        for n, verdict in enumerate(verdicts)
    ]
    return spark.createDataFrame(
        rows,
        "kind string, upstream string, downstream string, consumer_group string, "
        "event_id string, created_at timestamp, received_at timestamp, upstream_status string, "
        "downstream_status string, unlisted boolean, ambiguous boolean, "
        "ahead boolean, verdict string",
    )


def test_rows_are_counted_by_pair_and_verdict(spark):
    rows = judged(spark, Verdict.MATCHED, Verdict.STUCK, Verdict.MATCHED)
    counts = {
        (row.consumer_group, row.verdict): (row.rows, row.unlisted)
        for row in transforms.counted(rows).collect()
    }
    assert counts == {("reserve", "MATCHED"): (2, 0), ("reserve", "STUCK"): (1, 1)}


def test_clean_rows_are_not_listed(spark):
    listed = transforms.listed(judged(spark, *Verdict)).collect()
    assert {row.verdict for row in listed} == {v.value for v in Verdict if v.is_listed}


def test_one_sided_event_sent_twice_is_ambiguous_until_too_old(spark):
    twice = {"upstream_unconfirmed": True, "created_at": before(90), "published_at": before(50)}
    rows = rows_of(
        spark,
        sent(
            spark,
            {"event_id": "twice"} | twice,
            {"event_id": "received"} | twice,
            {"event_id": "moving"} | twice | {"upstream_moved_at": before(-1)},
            {"event_id": "parked"} | twice | {"upstream_status": "FAILED"},
            {"event_id": "settled long ago"} | twice | {"published_at": before(61)},
            {"event_id": "young"} | twice | {"created_at": before(55)},
            {"event_id": "once", "created_at": before(90), "published_at": before(61)},
        ),
        received(spark, {"event_id": "received"}, {"event_id": "ghost", "event_time": before(70)}),
        window=Window(horizon=before(60), watermark=NOON),
    )
    assert {row.event_id for row in rows.collect() if row.ambiguous} == {"twice"}
    assert {row.event_id for row in transforms.listed(rows).collect()} >= {"twice"}
    ambiguous = {row.verdict: row.ambiguous for row in transforms.counted(rows).collect()}
    assert ambiguous.pop("TOO_OLD") == 1
    assert set(ambiguous.values()) == {0}


HOUR_KEPT = Window(horizon=before(60), watermark=NOON)
DELAYED = {"event_id": "e", "created_at": before(500), "published_at": before(31)}
ARRIVED = {
    "event_id": "e",
    "event_time": before(500),
    "received_at": before(30),
    "settled_at": before(29),
}


@pytest.mark.parametrize(
    ("arrival", "changes", "verdict"),
    [
        (ARRIVED, {}, "NEITHER_EFFECT_NOR_COMPENSATION"),
        # The rollback is written when the group gives up, however long ago the event was sent.
        (ARRIVED, {"published_at": before(300)}, "NEITHER_EFFECT_NOR_COMPENSATION"),
        (ARRIVED, {"upstream_unconfirmed": True}, "NEITHER_EFFECT_NOR_COMPENSATION"),
        (ARRIVED | {"settled_at": before(61)}, {}, "TOO_OLD"),
        # The upstream has purged the event: the rollback would be in the group's own database.
        (ARRIVED | {"received_at": before(61)}, None, "NEITHER_EFFECT_NOR_COMPENSATION"),
        (ARRIVED, None, "NEITHER_EFFECT_NOR_COMPENSATION"),
        (ARRIVED | {"received_at": before(62), "settled_at": before(61)}, None, "TOO_OLD"),
        (ARRIVED | {"event_time": before(60)}, None, "UNKNOWN_UPSTREAM"),
    ],
)
def test_rollback_is_due_from_the_time_its_event_was_given_up(spark, arrival, changes, verdict):
    rows = rows_of(
        spark,
        sent(spark, *([] if changes is None else [DELAYED | changes])),
        received(spark, arrival | {"downstream_status": "MAX_RECONSUMED"}),
        window=HOUR_KEPT,
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == (verdict, False)


@pytest.mark.parametrize(
    ("event", "back_at", "verdict", "is_ambiguous"),
    [
        (DELAYED, before(20), "EFFECT_DESPITE_ROLLBACK", False),
        # The first record may have arrived, and the reason was purged.
        (DELAYED | {"upstream_unconfirmed": True}, before(20), "TOO_OLD", True),
        (DELAYED | {"upstream_unconfirmed": True}, before(61), "TOO_OLD", False),
        # A run could judge the rollback for a while.
        (DELAYED | {"published_at": before(70)}, before(20), "TOO_OLD", False),
        (DELAYED | {"published_at": before(90)}, before(20), "TOO_OLD", True),
    ],
)
def test_uncalled_rollback_is_dated_by_the_sending_of_its_event(
    spark, event, back_at, verdict, is_ambiguous
):
    unfounded = {"event_id": "e", "answered_at": back_at, "entitled": False}
    rows = rows_of(
        spark,
        sent(spark, event),
        received(spark, ARRIVED),
        answers=(rollbacks(spark, unfounded), compensations(spark)),
        window=HOUR_KEPT,
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == (verdict, is_ambiguous)


@pytest.mark.parametrize(
    ("arrival", "verdict", "is_ambiguous"),
    [
        (ARRIVED, "TOO_OLD", True),
        (ARRIVED | {"event_time": before(91)}, "TOO_OLD", True),
        # An earlier run could judge the event: its row was there.
        (ARRIVED | {"event_time": before(89)}, "TOO_OLD", False),
        (ARRIVED | {"received_at": before(61)}, "TOO_OLD", False),
        (
            ARRIVED | {"downstream_status": "FENCED", "downstream_overtaken": True},
            "TOO_OLD",
            False,
        ),
        (ARRIVED | {"event_time": before(59)}, "UNKNOWN_UPSTREAM", False),
    ],
)
def test_arrival_without_outbox_row_and_earlier_run_is_ambiguous(
    spark, arrival, verdict, is_ambiguous
):
    rows = rows_of(spark, sent(spark), received(spark, arrival), window=HOUR_KEPT)
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == (verdict, is_ambiguous)
    assert transforms.listed(rows).count() == int(verdict != "TOO_OLD" or is_ambiguous)
    (count,) = transforms.counted(rows).collect()
    assert (count.ambiguous, count.unknown, count.arrived) == (int(is_ambiguous),) * 3


RETURNED = {"event_id": "r", "causation_id": "e", "causation_source": "orders"}
REPLAYED = RETURNED | {"created_at": before(90), "published_at": before(31)}
SETTLED_LATE = RETURNED | {
    "event_time": before(90),
    "received_at": before(30),
    "settled_at": before(29),
}


@pytest.mark.parametrize(
    ("rollback", "arrival", "verdict", "is_ambiguous"),
    [
        # FAILED until the replay, for longer than all retentions or for nearly as long.
        ([REPLAYED], SETTLED_LATE, "TOO_OLD", True),
        ([REPLAYED], SETTLED_LATE | {"event_time": before(61)}, "TOO_OLD", True),
        ([REPLAYED], SETTLED_LATE | {"event_time": before(60)}, "ROLLBACK_NOT_COMPENSATED", False),
        # DEAD until the replay: the outbox row is purged.
        ([], SETTLED_LATE | {"received_at": before(89)}, "TOO_OLD", True),
        ([REPLAYED], SETTLED_LATE | {"settled_at": before(61)}, "TOO_OLD", False),
        # Unknown whether a group of another service has to compensate the event.
        ([REPLAYED], SETTLED_LATE | {"downstream_owes": None}, "TOO_OLD", True),
        ([REPLAYED], SETTLED_LATE | {"downstream_owes": False}, "MATCHED", False),
        ([REPLAYED], SETTLED_LATE | {"downstream_status": "DEAD"}, "PARKED", False),
    ],
)
def test_rollback_settled_late_without_compensation_is_ambiguous(
    spark, rollback, arrival, verdict, is_ambiguous
):
    rows = rows_of(
        spark,
        sent(spark, *rollback, stream=BACK),
        received(spark, arrival, stream=BACK),
        window=HOUR_KEPT,
        stream=BACK,
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == (verdict, is_ambiguous)
    assert transforms.listed(rows).count() == int(verdict != "MATCHED")


def test_rollback_settled_late_with_compensation_is_clear(spark):
    rows = rows_of(
        spark,
        sent(spark, REPLAYED, stream=BACK),
        received(spark, SETTLED_LATE, stream=BACK),
        answers=(rollbacks(spark), compensations(spark, {"causation_id": "e"})),
        window=HOUR_KEPT,
        stream=BACK,
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == ("MATCHED", False)


CAME = {"event_id": "e", "event_time": before(90), "received_at": before(30)}
SENT_TWICE = {
    "event_id": "e",
    "created_at": before(90),
    "published_at": before(31),
    "upstream_due_at": before(90),
    "upstream_unconfirmed": True,
}
ANSWER = {"event_id": "e", "entitled": True}


@pytest.mark.parametrize(
    ("event", "arrival", "answers", "verdict", "is_ambiguous"),
    [
        (SENT_TWICE, CAME, [], "MATCHED", True),
        (SENT_TWICE, CAME, [ANSWER], "MATCHED", True),
        (SENT_TWICE, CAME | {"downstream_status": "MAX_RECONSUMED"}, [ANSWER], "REFUSED", True),
        (SENT_TWICE | {"upstream_due_at": before(60)}, CAME, [], "MATCHED", True),
        (SENT_TWICE | {"upstream_due_at": before(59)}, CAME, [], "MATCHED", False),
        # The event was sent once, so the received record was the first.
        (SENT_TWICE | {"upstream_unconfirmed": False}, CAME, [], "MATCHED", False),
        (
            SENT_TWICE | {"upstream_unconfirmed": False, "published_at": before(60)},
            CAME,
            [],
            "MATCHED",
            True,
        ),
        (SENT_TWICE, CAME | {"settled_at": before(61)}, [], "MATCHED", False),
        # Nothing was done, or the row has another mismatch.
        (
            SENT_TWICE,
            CAME | {"downstream_status": "FENCED", "downstream_overtaken": True},
            [],
            "REFUSED",
            False,
        ),
        (SENT_TWICE, CAME | {"downstream_digest": 1}, [], "PAYLOAD_DIFFERS", False),
        (SENT_TWICE, CAME | {"downstream_status": "INIT", "settled_at": None}, [], "STUCK", False),
    ],
)
def test_arrival_after_the_retention_may_have_two_effects(
    spark, event, arrival, answers, verdict, is_ambiguous
):
    rows = rows_of(
        spark,
        sent(spark, event),
        received(spark, arrival),
        answers=(rollbacks(spark, *answers), compensations(spark)),
        window=HOUR_KEPT,
        memory=timedelta(minutes=30),
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == (verdict, is_ambiguous)
    is_listed = is_ambiguous or Verdict[verdict].is_listed
    assert transforms.listed(rows).count() == int(is_listed)


def test_a_group_that_purges_nothing_knows_every_event_again(spark):
    event, arrival = sent(spark, SENT_TWICE), received(spark, CAME)
    (row,) = rows_of(spark, event, arrival, window=HOUR_KEPT).collect()
    assert (row.verdict, row.ambiguous) == ("MATCHED", False)


@pytest.mark.parametrize("is_compensated", [True, False])
def test_rollback_after_the_retention_may_be_compensated_twice(spark, is_compensated):
    """A rollback that compensated nothing has no second effect."""
    done = [{"causation_id": "e"}] if is_compensated else []
    rows = rows_of(
        spark,
        sent(spark, SENT_TWICE | RETURNED, stream=BACK),
        received(spark, CAME | RETURNED | {"downstream_owes": False}, stream=BACK),
        answers=(rollbacks(spark), compensations(spark, *done)),
        window=HOUR_KEPT,
        stream=BACK,
        memory=timedelta(minutes=30),
    )
    (row,) = rows.collect()
    assert (row.verdict, row.ambiguous) == ("MATCHED", is_compensated)


@pytest.mark.parametrize("side", ["upstream_status", "downstream_status"])
def test_what_one_side_has_purged_is_not_listed(spark, side):
    rows = judged(spark, Verdict.TOO_OLD, Verdict.IN_FLIGHT, Verdict.MISSING_DOWNSTREAM)
    alone = rows.withColumn(side, F.lit(None).cast("string"))
    listed = {row.verdict for row in transforms.listed(alone).collect()}
    assert listed == {"IN_FLIGHT", "MISSING_DOWNSTREAM"}


def test_the_earliest_rows_of_each_mismatch_are_shown(spark):
    rows = judged(
        spark,
        *[Verdict.STUCK, Verdict.IN_FLIGHT, Verdict.UNKNOWN_UPSTREAM],
        *[Verdict.STUCK, Verdict.STUCK, Verdict.MATCHED],
    )
    shown = {
        (row.verdict, row.number): row.event_id for row in transforms.first_rows(rows, 2).collect()
    }
    assert shown == {("STUCK", 1): "000", ("STUCK", 2): "003", ("UNKNOWN_UPSTREAM", 1): "002"}
    assert transforms.first_rows(rows, 0).collect() == []
