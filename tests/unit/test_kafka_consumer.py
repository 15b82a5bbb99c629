"""Records that are read faster than kafka-python reads them are the same records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from shieldtx.brokers import kafka_consumer
from shieldtx.brokers.kafka_consumer import PartitionRecords

PLACE = TopicPartition("orders.commit", 3)
NO_COMPRESSION, GZIP = 0, 1
HEADER_BYTES = 61
"""Of a batch, in front of its records."""
ATTRIBUTES = 22
"""The place of the lower byte of a batch's attributes."""
TIME_OF_THE_LOG = 0x08

contents = st.none() | st.binary(max_size=200)
names = st.text(st.characters(codec="utf-8"), max_size=70)
headers = st.lists(st.tuples(names, contents), max_size=8)
records = st.tuples(st.integers(-(2**40), 2**40), contents, contents, headers)


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Draw the records of a batch, the headers of most of which begin in the same way."""
    first = draw(headers)
    drawn = draw(st.lists(st.tuples(records, st.booleans()), min_size=1, max_size=6))
    return [
        (at, key, value, first + own if begins else own) for (at, key, value, own), begins in drawn
    ]


def batch_of(given_records: list[tuple[Any, ...]], compression: int = NO_COMPRESSION) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=False,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1_000_000,
    )
    for number, (at, key, value, named) in enumerate(given_records):
        assert builder.append(number, at, key, value, named) is not None
    return bytearray(builder.build())


def read(reader: Any, batches: bytes) -> tuple[list[tuple[Any, ...]], str]:
    """Return the records and the error that ended their reading, as far as users see them."""
    found: list[tuple[Any, ...]] = []
    partition = reader(0, PLACE, MemoryRecords(batches), check_crcs=False)
    try:
        while partition:
            found += [
                (*r[:8], [tuple(h) for h in r.headers[:]], r.checksum, *r[10:12])
                for r in partition.take(2)
            ]
    except Exception as error:  # noqa: BLE001  compared with the other reader's
        return found, repr(error)
    return found, ""


def assert_same(batches: bytes) -> None:
    found, error = read(PartitionRecords, batches)
    theirs, their_error = read(Fetcher.PartitionRecords, batches)
    if "UnicodeDecodeError" in their_error:  # which shieldtx reads over
        assert found[: len(theirs)] == theirs
    else:
        assert (found, error) == (theirs, their_error)


@given(st.lists(alike(), min_size=1, max_size=3), st.sampled_from([NO_COMPRESSION, GZIP]))
@example(
    [[(0, b"k", b"v", [("a", b"1"), ("b", None), ("c", str(n).encode())]) for n in range(4)]],
    NO_COMPRESSION,
)
def test_every_record_is_read_as_the_client_reads_it(
    batches: list[list[tuple[Any, ...]]], compression: int
) -> None:
    written = b"".join(batch_of(each, compression) for each in batches)
    found, error = read(PartitionRecords, written)
    assert not error
    assert [r[6:9] for r in found] == [r[1:] for each in batches for r in each]
    assert_same(written)


@given(alike(), st.data())
def test_a_broken_batch_fails_after_the_same_records_as_with_the_client(
    given_records: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    batch = batch_of(given_records)
    place = data.draw(st.integers(HEADER_BYTES, len(batch) - 1))
    batch[place] = data.draw(st.integers(0, 255))
    assert_same(bytes(batch))


def test_a_name_that_is_no_utf_8_is_read_in_the_midst_of_others() -> None:
    batch = batch_of(
        [(0, b"k", b"v", [("same", b"1"), (name, b"2")]) for name in ("one", "tw~", "six")]
    )
    found, error = read(PartitionRecords, bytes(batch.replace(b"tw~", b"tw\xff")))
    assert [r[8][1][0] for r in found] == ["one", "tw\udcff", "six"]
    assert not error


def test_the_time_of_the_log_counts_where_the_topic_says_so() -> None:
    batch = batch_of([(5, b"k", b"v", []), (9, b"k", b"v", [])])
    batch[ATTRIBUTES] |= TIME_OF_THE_LOG
    found, _ = read(PartitionRecords, bytes(batch))
    assert [r[4:6] for r in found] == [(9, 1), (9, 1)]
    assert_same(bytes(batch))


def test_where_the_client_is_another_its_own_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = bytes(batch_of([(0, b"k", b"v", [("name", b"1")]), (1, None, None, [])]))
    fast = read(PartitionRecords, batch)
    monkeypatch.setattr(kafka_consumer, "_IS_AS_KNOWN", False)
    monkeypatch.setattr(kafka_consumer, "_Reader", None)
    assert read(PartitionRecords, batch) == fast
