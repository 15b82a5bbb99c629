"""Tests of the data source that reads topics, on a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, timedelta
from uuid import UUID, uuid4

import pytest

from shieldtx.brokers.cloudevents import encode
from shieldtx.brokers.kafka.range_reader import OffsetRange, RangeReader
from shieldtx.brokers.kafka.topic_offsets import TopicOffsetReader, TopicOffsets
from shieldtx.domain.events import new_event_id
from shieldtx.domain.external_ids import EXTERNAL_CAUSATION_ID, EXTERNAL_ID, event_id_of
from shieldtx.domain.states import TxKind
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import BrokerError, BrokerUnavailable
from spark.sources.kafka_data_source import DELETED, frame_of, parts_of
from tests.spark.publishing import WRITTEN, Topic


@pytest.fixture
def topic(kafka: EmbeddedKafka) -> Topic:
    return Topic(kafka.bootstrap).make()


@pytest.fixture
def fragile() -> Iterator[EmbeddedKafka]:
    """Return a broker that a test may kill."""
    with EmbeddedKafka() as broker:
        yield broker


def offsets_of(topic: Topic, **asked) -> TopicOffsets:
    with TopicOffsetReader(topic.connection) as reader:
        return reader.of(topic.name, **asked)


def frame(spark, topic: Topic, *, part: int = 1_000):
    return frame_of(spark, topic.connection, [topic.log], offsets_of(topic).ranges, part=part)


def read(spark, topic: Topic, *, part: int = 1_000):
    """Return the rows in the order of the log."""
    return frame(spark, topic, part=part).orderBy("partition", "offset").collect()


def test_an_event_is_read_without_its_payload(spark, topic):
    cause = uuid4()
    event = topic.event(causation_id=cause, causation_source="stock", key="käse")
    topic.publish(event)
    (row,) = read(spark, topic)
    told = row.asDict()
    assert told.pop("sent_at") is not None
    assert told == {
        "topic": topic.logical,
        "kind": "COMMIT",
        "partition": 0,
        "offset": 0,
        "event_id": str(event.id),
        "source": "orders",
        "key": "käse",
        "event_type": "orders.placed",
        "causation_id": str(cause),
        "written_at": WRITTEN.isoformat(),
        "problem": None,
    }


def test_each_record_is_read_once_for_any_division_of_offsets(spark, kafka):
    topic = Topic(kafka.bootstrap).make(partitions=3)
    events = [topic.event(key=f"k{n}") for n in range(100)]
    topic.publish(*events, events[0])
    for part in (7, 33, 1_000):
        records = frame(spark, topic, part=part)
        rows = records.collect()
        assert records.rdd.getNumPartitions() >= 101 // part
        assert len(rows) == 101
        assert {row.event_id for row in rows} == {str(event.id) for event in events}
        assert len({row.partition for row in rows}) == 3


def test_records_of_a_partition_stay_in_order_within_a_task(spark, topic):
    topic.publish(*[topic.event() for _ in range(50)])
    offsets = frame(spark, topic, part=20).rdd.glom().map(lambda r: [x.offset for x in r]).collect()
    assert offsets == [list(range(20)), list(range(20, 40)), list(range(40, 50))]


def test_range_that_ends_with_transaction_markers_completes(spark, topic):
    with topic.producer(transactional_id=f"t-{topic.logical}") as producer:
        producer.init_transactions()
        for commits in (True, False):
            producer.begin_transaction()
            record = encode(topic.event(), topic.prefix)
            producer.send(
                topic.name, record.value, key=record.key, headers=list(record.headers), partition=0
            )
            producer.flush()
            (producer.commit_transaction if commits else producer.abort_transaction)()
    offsets = offsets_of(topic)
    assert offsets.ranges[0].end == 4
    # Consumers do not receive the record of the aborted transaction.
    assert [row.offset for row in read(spark, topic)] == [0]
    assert [row.offset for row in read(spark, topic, part=1)] == [0]


def test_topic_with_open_transaction_differs_from_an_empty_one(topic):
    with topic.producer(transactional_id=f"t-{topic.logical}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.name, b"x", partition=0)
        producer.flush()
        with (
            TopicOffsetReader(topic.connection, timeout=1) as reader,
            pytest.raises(BrokerError, match=r"partition 0 .* open transaction .* offset 0"),
        ):
            reader.of(topic.name)
        producer.abort_transaction()
    assert offsets_of(topic).ranges[0].end == 2


def test_records_deleted_before_the_run_are_not_awaited(spark, topic):
    topic.publish(*[topic.event() for _ in range(10)])
    topic.delete_before(6)
    assert offsets_of(topic).ranges == (
        OffsetRange(topic=topic.name, partition=0, start=6, end=10),
    )
    assert [row.offset for row in read(spark, topic)] == [6, 7, 8, 9]


def test_records_deleted_during_the_run_are_reported(spark, topic):
    topic.publish(*[topic.event() for _ in range(10)])
    records = frame(spark, topic, part=4)
    topic.delete_before(6)
    rows = records.orderBy("offset").collect()
    # The first of three parts is deleted, and half of the second part.
    assert [(row.offset, row.problem) for row in rows if row.problem] == [(6, DELETED)] * 2
    assert [row.offset for row in rows if not row.problem] == [6, 7, 8, 9]


def test_emptied_partition_reports_that_it_had_records(spark, topic):
    topic.publish(*[topic.event() for _ in range(5)])
    topic.delete_before(5)
    assert offsets_of(topic).ranges[0].start == 5
    assert read(spark, topic) == []


def test_an_empty_topic_has_no_records(spark, topic):
    assert offsets_of(topic).ranges[0].size == 0
    assert read(spark, topic) == []


def test_records_before_a_time_are_not_read(spark, topic):
    topic.publish(topic.event())
    first = read(spark, topic)[0].sent_at
    topic.publish_at(first + timedelta(minutes=1), topic.event())
    since = first.astimezone(UTC) + timedelta(seconds=30)
    offsets = offsets_of(topic, since=since)
    assert (offsets.ranges[0].start, offsets.ranges[0].end, offsets.later) == (1, 2, {0})
    offsets = offsets_of(topic, since=since + timedelta(days=1))
    assert (offsets.ranges[0].size, offsets.later) == (0, {0})
    offsets = offsets_of(topic, since=since - timedelta(days=1))
    assert (offsets.ranges[0].start, offsets.later) == (0, frozenset())


class _Odd(str):
    """The name of a header that is sent as bytes which are not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe"


def test_foreign_records_are_recognized_and_stop_nothing(spark, topic):
    own = encode(topic.event(), topic.prefix)
    changed = {
        "no header at all": [],
        "no id": [(n, v) for n, v in own.headers if n != "ce_id"],
        "an id of letters": [(n, b"x" * 36 if n == "ce_id" else v) for n, v in own.headers],
        "no text": [(n, b"\xff" if n == "ce_source" else v) for n, v in own.headers],
        "nothing": [(n, b"" if n == "ce_source" else v) for n, v in own.headers],
        "a nul": [(n, b"a\x00" if n == "ce_source" else v) for n, v in own.headers],
        "long": [(n, b"x" * 300 if n == "ce_source" else v) for n, v in own.headers],
        "another kind": [(n, b"ROLLBACK" if n == "ce_txkind" else v) for n, v in own.headers],
        "an id twice": [*own.headers, ("ce_id", b"x")],
        "structured mode": [("content-type", b"application/cloudevents+json"), *own.headers[1:]],
        "a cause without source": [*own.headers, ("ce_causationid", b"A-1")],
    }
    harmless = [*own.headers, ("twice", b"1"), ("twice", b"2"), (_Odd("x"), b"\xff")]
    with topic.producer() as producer:
        for headers in changed.values():
            producer.send(topic.name, b"x", key=b"k", headers=headers, partition=0).get(20)
        producer.send(topic.name, None, key=b"\xff", headers=list(own.headers), partition=0).get(20)
        producer.send(topic.name, b"x", key=None, headers=harmless, partition=0).get(20)
    topic.publish(topic.event(source="another"))
    rows = read(spark, topic)
    assert [row.problem for row in rows] == [
        "ce_id is missing",
        "ce_id is missing",
        None,
        "ce_source is not UTF-8",
        "ce_source is missing",
        "ce_source holds a NUL character",
        "ce_source is too long",
        "ce_txkind does not fit the topic",
        "a header of shieldtx occurs twice",
        "it is in structured mode, which only other producers write",
        "ce_causationid is not a UUID, and ce_causationsource is missing",
        "the key is not UTF-8",
        None,
        None,
    ]
    assert [row.source for row in rows[-2:]] == ["orders", "another"]
    assert {row.source for row in rows[:-2] if row.problem} == {None}
    assert rows[2].event_id == str(event_id_of("orders", "x" * 36))


def test_ids_of_other_producers_are_those_of_their_consumers(spark, topic):
    ids = {"id": event_id_of("orders", "A-1"), "causation_id": event_id_of("/x", "A-2")}
    event = topic.event(id=new_event_id(), causation_id=new_event_id(), causation_source="/x")
    original = event.evolve(**ids, headers={EXTERNAL_ID: "A-1", EXTERNAL_CAUSATION_ID: "A-2"})
    topic.publish(event, original)
    whole, mapped = read(spark, topic)
    assert (whole.event_id, whole.causation_id) == (str(event.id), str(event.causation_id))
    assert {"id": UUID(mapped.event_id), "causation_id": UUID(mapped.causation_id)} == ids


def test_impossible_times_are_null(spark, kafka):
    topic = Topic(kafka.bootstrap).make(message_timestamp_after_max_ms=str(2**63 - 1))
    record = encode(topic.event(), topic.prefix)
    with topic.producer() as producer:
        for time in (0, 2**62):
            producer.send(
                topic.name,
                b"{}",
                headers=list(record.headers),
                partition=0,
                timestamp_ms=time,
            ).get(20)
    first, second = read(spark, topic)
    assert first.sent_at.timestamp() == 0
    assert second.sent_at is None


def test_rollbacks_are_read_from_their_own_topic(spark, kafka):
    topic = Topic(kafka.bootstrap, kind=TxKind.ROLLBACK).make()
    topic.publish(topic.event(causation_id=uuid4(), causation_source="stock"))
    assert [row.kind for row in read(spark, topic)] == ["ROLLBACK"]


def test_large_ranges_are_cut_and_small_ones_put_together():
    def range_(partition: int, start: int, end: int) -> OffsetRange:
        return OffsetRange(topic="t", partition=partition, start=start, end=end)

    parts = parts_of([range_(0, 5, 25), range_(1, 3, 3), range_(2, 0, 4), range_(3, 9, 13)], 10)
    assert [part.ranges for part in parts] == [
        (range_(0, 5, 15),),
        (range_(0, 15, 25),),
        (range_(2, 0, 4), range_(3, 9, 13)),
    ]
    assert parts_of([range_(1, 3, 3)], 10) == ()


def test_a_broker_that_dies_while_it_is_read_is_an_error(fragile):
    topic = Topic(fragile.bootstrap).make()
    topic.publish(*[topic.event() for _ in range(10)])
    beyond = OffsetRange(topic=topic.name, partition=0, start=0, end=20)
    record_ranges = RangeReader(topic.connection, patience=2).read([beyond])
    assert len(next(record_ranges).records) == 10
    fragile.kill()
    with pytest.raises(BrokerUnavailable, match=rf"nothing came from partition 0 of {topic.name}"):
        list(record_ranges)


def test_a_topic_recreated_during_a_read_is_an_error(kafka):
    topic = Topic(kafka.bootstrap).make()
    topic.publish(topic.event())
    lost = OffsetRange(topic=topic.name, partition=0, start=5, end=9)
    with pytest.raises(BrokerError, match="recreated or truncated while"):
        list(RangeReader(topic.connection, patience=5).read([lost]))
