"""The corpus of bad records: none stops its partition, none is lost, none affects a good record."""

from __future__ import annotations

import gc
import logging
import re
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from shieldtx.brokers import decoding
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.embedded import EmbeddedKafka
from shieldtx.errors import UndecodableRecord
from shieldtx.ports.broker import ReceivedRecord
from tests.robustness.cases import Case, cases, event_of, record_of
from tests.robustness.conftest import Make
from tests.support.log_records import logged
from tests.support.service import effect, make_topics

CASES = cases()
TOPIC = "orders.placed.commit"
LONGEST_S = 2.0


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Collect no garbage: what thousands of tests have left takes longer than any record."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_corpus_record_is_taken_or_refused_with_its_reason(case: Case) -> None:
    record = ReceivedRecord(
        topic=TOPIC, partition=0, offset=0, key=case.key, value=case.value, headers=case.headers
    )
    began = time.thread_time()
    if case.expect == "parked":
        assert case.reason, "what is parked says why"
        with pytest.raises(UndecodableRecord, match=case.reason):
            decoding.decode(record, "")
    else:
        assert decoding.decode(record, "").payload.encode() == case.value
    assert time.thread_time() - began < LONGEST_S


def test_corpus_has_all_kinds_of_records() -> None:
    by_expectation = {case.expect for case in CASES}
    assert by_expectation == {"parked", "taken", "ignored"}
    assert len(CASES) > 100
    assert len({case.id for case in CASES if case.expect == "taken"}) == len(
        [case for case in CASES if case.expect == "taken"]
    )


class Stranger:
    """A foreign producer for one partition, which sends arbitrary records.

    It has two clients: one sends nothing without key, value or a header's value, the other no
    header name that is not UTF-8.
    """

    def __init__(self, bootstrap: str, place: TopicPartition) -> None:
        self._place = place
        self._python = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=20)
        self._librdkafka = Producer({"bootstrap.servers": bootstrap})

    def send(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        topic, partition = self._place
        if (key or value) and all(content is not None for _, content in headers):
            self._python.send(topic, value, key, list(headers), partition)
            return
        self._python.flush(20)
        self._librdkafka.produce(topic, value, key, partition, headers=list(headers))
        assert self._librdkafka.flush(20) == 0

    def close(self) -> None:
        self._python.flush(20)
        self._python.close()


def test_bad_records_do_not_block_or_reorder_good_ones(
    kafka: EmbeddedKafka,
    make_service: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    prefix = f"{uuid.uuid4().hex[:12]}."
    connection = KafkaConnection(bootstrap_servers=kafka.bootstrap)
    service = make_service("stock", KafkaBroker(connection), topic_prefix=prefix)
    group = f"stock-{prefix}x"
    service.app.consumer(group).handles("orders.placed")(effect("reserved"))
    make_topics(service, partitions=1)
    place = TopicPartition(f"{prefix}{TOPIC}", 0)
    foreign = Stranger(kafka.bootstrap, place)
    expected: list[str] = []
    sent: dict[int, Case] = {}
    for number, case in enumerate([*CASES, None]):
        good = event_of(f"good {number}")
        record = record_of(good, prefix)
        expected.append(str(good.id))
        foreign.send(record.key, record.value, record.headers)
        if case is not None:
            foreign.send(case.key, case.value, case.headers)
            sent[2 * number + 1] = case
            if case.expect == "taken":
                expected.append(str(case.id))
    foreign.close()

    consumer = service.app.build_consumer(group)
    with caplog.at_level(logging.INFO):
        # A pass may find nothing because the group has not formed yet.
        while consumer.run_once().more or not consumer.has_caught_up():
            continue
    consumer.close()

    assert [event_id for (event_id,) in service.rows("SELECT event_id FROM effects")] == expected
    assert service.inbox() == {"PROCESSED": len(expected)}
    letters = service.app.stores.dead_letters().parked(limit=1000, group=group)
    parked = {letter.record.offset: letter for letter in letters}
    assert set(parked) == {at for at, case in sent.items() if case.expect == "parked"}
    for at, letter in parked.items():
        record = letter.record
        assert (record.key, record.value, record.headers) == _content(sent[at])
        assert re.search(sent[at].reason, letter.reason)
    assert committed(kafka, group, place) == (2 * len(CASES) + 1,) * 2
    assert len(logged(caplog.records, "record_parked")) == len(parked)
    assert_lines(caplog.text.splitlines(), at_least=len(parked))


def _content(case: Case) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return case.key, case.value, case.headers


def committed(kafka: EmbeddedKafka, group: str, place: TopicPartition) -> tuple[int | None, int]:
    """Return the group's committed offset, and the partition's end offset."""
    reader = KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=group)
    try:
        return reader.committed(place), reader.end_offsets([place])[place]
    finally:
        reader.close()


def assert_lines(messages: Sequence[str], *, at_least: int) -> None:
    """Assert that each message is one printable line of limited length."""
    assert len(messages) >= at_least
    for message in messages:
        assert message.isprintable(), message
        assert len(message) < 1000, message
