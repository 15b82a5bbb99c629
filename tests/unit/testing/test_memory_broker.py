"""The faults that a test can inject into the broker in memory."""

from __future__ import annotations

import threading

import pytest

from shieldtx.errors import BrokerUnavailable
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.testing.memory_broker import MemoryBroker

TOPIC = "orders.commit"


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker(max_record_bytes=1_000)
    broker.topics().create([TOPIC, "stock.commit"], partitions=2, replication=1)
    return broker


def record(value: str, key: str | None = "k", topic: str = TOPIC) -> Record:
    return Record(topic=topic, key=None if key is None else key.encode(), value=value.encode())


def outcomes(broker: MemoryBroker, *records: Record) -> list[str]:
    return [d.outcome.name for d in broker.publisher().publish(records, timeout=1)]


def values(broker: MemoryBroker, topic: str = TOPIC) -> list[str]:
    return [r.value.decode() for r in broker.records(topic) if r.value is not None]


def test_unconfirmed_record_that_was_stored_ends_the_call(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.ACKNOWLEDGED, DeliveryOutcome.UNCONFIRMED, stored=True)
    ended = outcomes(broker, record("1"), record("2"), record("3"), record("4", key="else"))
    assert ended == ["ACKNOWLEDGED", "UNCONFIRMED", "UNSENT", "UNSENT"]
    assert values(broker) == ["1", "2"]


def test_unconfirmed_record_need_not_be_stored(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.UNCONFIRMED)
    assert outcomes(broker, record("1"), record("2")) == ["UNCONFIRMED", "UNSENT"]
    assert values(broker) == []


def test_injected_rejection_defers_only_its_key(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.REJECTED)
    ended = outcomes(broker, record("1"), record("2", key="else"), record("3"))
    assert ended == ["REJECTED", "ACKNOWLEDGED", "DEFERRED"]
    assert values(broker) == ["2"]


def test_rejected_record_without_key_defers_no_other(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.REJECTED)
    ended = outcomes(broker, record("1", key=None), record("2", key=None))
    assert ended == ["REJECTED", "ACKNOWLEDGED"]


def test_injected_refusal_refuses_the_rest_of_its_topic(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.REFUSED)
    ended = outcomes(broker, record("1"), record("2", topic="stock.commit"), record("3", key="b"))
    assert ended == ["REFUSED", "ACKNOWLEDGED", "REFUSED"]
    assert values(broker) == []


def test_injected_failure_occurs_once(broker: MemoryBroker) -> None:
    broker.fail_next(DeliveryOutcome.UNSENT)
    assert outcomes(broker, record("1")) == ["UNSENT"]
    assert outcomes(broker, record("1")) == ["ACKNOWLEDGED"]


def test_duplicated_record_is_in_the_log_twice(broker: MemoryBroker) -> None:
    broker.duplicate_next()
    assert outcomes(broker, record("1"), record("2")) == ["ACKNOWLEDGED", "ACKNOWLEDGED"]
    assert [(r.offset, r.value) for r in broker.records(TOPIC)] == [(0, b"1"), (1, b"1"), (2, b"2")]


def test_uncommitted_records_of_an_evicted_member_go_to_others(
    broker: MemoryBroker,
) -> None:
    outcomes(broker, record("1"), record("2"))
    dead, heir = broker.subscriber("g", [TOPIC]), broker.subscriber("g", [TOPIC])
    first, second = dead.poll(timeout=0, limit=10)
    dead.commit([first])
    broker.evict(dead)
    assert list(heir.poll(timeout=0, limit=10)) == [second]
    dead.commit([second])
    assert broker.committed("g") == {(TOPIC, first.partition): 1}


def test_group_without_offsets_reads_everything_again(broker: MemoryBroker) -> None:
    outcomes(broker, record("1"), record("2"))
    member = broker.subscriber("g", [TOPIC])
    records = member.poll(timeout=0, limit=10)
    member.commit(records)
    broker.forget_offsets("g")
    assert member.poll(timeout=0, limit=10) == records


def test_waiting_poll_wakes_when_a_record_comes(
    broker: MemoryBroker,
) -> None:
    member = broker.subscriber("g", [TOPIC])
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.extend(member.poll(timeout=30, limit=10)))
    waiting.start()
    outcomes(broker, record("1"))
    waiting.join(10)
    assert len(got) == 1


def test_waiting_poll_wakes_when_the_broker_goes_down(broker: MemoryBroker) -> None:
    member = broker.subscriber("g", [TOPIC])
    raised: list[Exception] = []

    def wait() -> None:
        try:
            member.poll(timeout=30, limit=10)
        except BrokerUnavailable as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    broker.go_down()
    waiting.join(10)
    assert len(raised) == 1


def test_concurrent_writers_lose_nothing(broker: MemoryBroker) -> None:
    def write(number: int) -> None:
        for i in range(200):
            outcomes(broker, record(f"{number}-{i}", key=str(number)))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        mine = [v for v in values(broker) if v.startswith(f"{number}-")]
        assert mine == [f"{number}-{i}" for i in range(200)]
