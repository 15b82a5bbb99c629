"""F22, F44: faults of topics while clients write."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from confluent_kafka.admin import NewPartitions

from shieldtx.domain.states import TxKind
from tests.verification.faults.banks import Banks
from tests.verification.faults.foreign_client import ForeignClient
from tests.verification.faults.matrix import Fault
from tests.verification.faults.replicas import (
    administer,
    ask_for,
    client,
    in_sync,
    replicate,
    second_broker,
)
from tests.verification.faults.survivors import (
    PATIENCE_S,
    expect_all_to_end_in_order,
    expect_no_attempt_burnt,
)
from tests.verification.faults.topics import Read
from tests.verification.faults.world import PARTITIONS, make_topics, own_kafka

MORE_PARTITIONS = 2 * PARTITIONS
TOO_FEW = "NotEnoughReplicas"
PATIENT = {"BANK_SEND_ATTEMPTS": "1000"}
"""Settings of a relay that waits for a topic longer than its creation takes."""

EACH_PARKED = "each is parked"


def deleted(banks: Banks) -> None:
    """The topic is deleted after all its records were read, and recreated later."""
    banks.open(but="upstream relay")
    relay = banks.upstream.relay(**PATIENT)
    load = banks.begin_writing(300, pause=0.1)
    topic = banks.topics[0]
    _await_published(banks, 60)
    with relay.stopped():
        _await_readers(banks)
        banks.gone.extend(record for record in banks.records() if record.topic == topic)
        administer(banks.kafka.bootstrap, lambda admin: admin.delete_topics([topic]))
    missing = f"topic {topic} does not exist; create it with `shieldtx topics create`"
    banks.until(lambda: banks.logged(missing), "the relay reports what is missing", PATIENCE_S)
    load.finish(PATIENCE_S)
    banks.expect(banks.upstream.unsettled() > 60, "what is written waits for the topic")
    banks.upstream.launch("topics", "create", SHIELDTX_TOPIC_PARTITIONS=str(PARTITIONS)).finish()


def missing_for_too_long(banks: Banks) -> None:
    """The topic is missing for longer than the attempts of its events last."""
    banks.open()
    banks.write(40)
    banks.drain()
    topic = banks.topics[0]
    banks.gone.extend(record for record in banks.records() if record.topic == topic)
    administer(banks.kafka.bootstrap, lambda admin: admin.delete_topics([topic]))
    banks.write(60)
    banks.until(lambda: not banks.upstream.unsettled(), "every event settles", PATIENCE_S)
    failed = banks.upstream.outbox().get("FAILED", 0)
    banks.expect(failed == 60, f"all 60 events without a topic fail: {failed}")
    missing = (
        "SELECT count(*) FROM shield_outbox WHERE last_error LIKE '%does not exist; create it%'"
    )
    banks.expect(banks.upstream.one(missing) == failed, "each reports what is missing")
    make_topics(banks.kafka, banks.topics)
    banks.write(40)


def missing_for_a_while(banks: Banks) -> None:
    """The topic is missing until rows are blocked by the events that wait for it."""
    banks.open(but="upstream relay")
    banks.upstream.relay(**PATIENT)
    topic = banks.topics[0]
    administer(banks.kafka.bootstrap, lambda admin: admin.delete_topics([topic]))
    load = banks.begin_writing(300, pause=0.05)
    blocked = (
        "SELECT count(*) FROM shield_outbox WHERE settled_at IS NULL AND holds_key AND NOT waiting"
    )
    banks.until(lambda: banks.upstream.one(blocked) > 60, "events are blocked", PATIENCE_S)
    make_topics(banks.kafka, banks.topics)
    load.finish(PATIENCE_S)


def more_partitions(banks: Banks) -> None:
    """Partitions are added while clients write: between two relays, when all has been read."""
    banks.open(but="upstream relay")
    banks.downstream.consume()
    relay = banks.upstream.relay()
    load = banks.begin_writing(300, pause=0.1)
    _await_published(banks, 60)
    banks.expect(relay.terminate() == 0, "the relay ends in order")
    _await_readers(banks)
    wanted = [NewPartitions(topic, MORE_PARTITIONS) for topic in banks.topics]
    administer(banks.kafka.bootstrap, lambda admin: admin.create_partitions(wanted))
    banks.upstream.relay()
    load.finish(PATIENCE_S)


def too_few_replicas(banks: Banks) -> None:
    """A broker with required replicas dies, until the topic requires fewer replicas."""
    banks.open()
    first, topic = banks.kafka.bootstrap, banks.topics[0]
    with second_broker(banks.kafka, banks.folder / "second broker") as second:
        replicate(first, topic, PARTITIONS)
        followed = partial(in_sync, client(first), topic)
        banks.until(lambda: followed() == {2}, "the second broker has followed", PATIENCE_S)
        ask_for(first, topic, 2)
        load = banks.begin_writing(200, pause=0.2)
        _await_published(banks, 40)
        second.kill()
        banks.until(lambda: followed() == {1}, "the second broker is missed", PATIENCE_S)
        banks.until(lambda: banks.logged(TOO_FEW), "the log shows what is wrong", PATIENCE_S)
        load.finish(PATIENCE_S)
        banks.until(
            lambda: banks.logged("action=broker_unavailable"),
            "the relay logs an outage",
            PATIENCE_S,
        )
        banks.expect(banks.upstream.unsettled() > 20, "what is written waits")
        ask_for(first, topic, 1)


def parked_before_and_after(banks: Banks, *, patience_s: float = PATIENCE_S) -> None:
    """Records are parked, their topic is recreated, and others are parked at the same offsets."""
    banks.open()
    banks.write(30)
    banks.drain()
    topic, foreign_client = banks.topics[0], ForeignClient(banks.kafka.bootstrap)
    model = foreign_client.read(topic)[0]
    contents: list[bytes] = []

    def park() -> None:
        begin = len(contents)
        contents.extend(f"no event {begin + p}".encode() for p in range(PARTITIONS))
        poison = [model.evolve(value=v, headers=()) for v in contents[-PARTITIONS:]]
        put = foreign_client.put(*(r.evolve(partition=p) for p, r in enumerate(poison)))
        banks.planted |= {record.place for record in put}
        banks.until(lambda: _parked(banks) == contents, EACH_PARKED, patience_s)

    park()
    for _ in range(2):
        _await_readers(banks)
        there = banks.records()[len(banks.gone) :]
        banks.gone.extend(record for record in there if record.topic == topic)
        banks.planted.clear()
        administer(banks.kafka.bootstrap, lambda admin: admin.delete_topics([topic]))
        make_topics(banks.kafka, [topic])
        park()
        banks.write(30)
        banks.drain()


def _parked(banks: Banks) -> list[bytes]:
    rows = banks.downstream.rows("SELECT record_value FROM shield_parked")
    return sorted((bytes(row.record_value) for row in rows), key=lambda v: int(v.split()[2]))


def _await_published(banks: Banks, number: int) -> None:
    banks.until(
        lambda: banks.upstream.outbox().get("PROCESSED", 0) >= number,
        f"{number} events are published",
        PATIENCE_S,
    )


def _commits(banks: Banks) -> list[Read]:
    return [record for record in banks.records() if record.kind == TxKind.COMMIT]


def _await_readers(banks: Banks) -> None:
    """Wait until the downstream bank has received all records of the topic."""

    def received() -> set[UUID]:
        return {row.event_id for row in banks.downstream.rows("SELECT event_id FROM shield_inbox")}

    banks.until(
        lambda: {record.id for record in _commits(banks)} <= received(),
        "the topic is read",
        PATIENCE_S,
    )


def _moved_keys(banks: Banks) -> None:
    """Expect that keys moved to another partition between their events."""
    places: dict[str | None, set[int]] = {}
    for record in _commits(banks):
        places.setdefault(record.key, set()).add(record.partition)
    banks.expect(
        any(len(partitions) > 1 for partitions in places.values()), "keys change their partition"
    )
    expect_all_to_end_in_order(banks)


def _first_attempts(banks: Banks) -> None:
    expect_no_attempt_burnt(banks)
    expect_all_to_end_in_order(banks)


def _undone_or_parked(banks: Banks) -> None:
    """Expect refunds, except where an attempt may have reached the broker."""
    withdrawn = banks.upstream.one("SELECT count(*) FROM withdrawal")
    ambiguous = banks.upstream.one(
        "SELECT count(*) FROM shield_outbox WHERE status = 'FAILED' AND unconfirmed"
    )
    banks.expect(withdrawn > 0, "local rollbacks have run")
    banks.expect(
        withdrawn + ambiguous == 60,
        f"{withdrawn} events are undone, {ambiguous} wait for an operator",
    )
    expect_all_to_end_in_order(banks)


def _none_failed(banks: Banks) -> None:
    """Expect that every event has waited for its topic."""
    banks.expect("FAILED" not in banks.upstream.outbox(), "no event has failed")
    expect_all_to_end_in_order(banks)


FAULTS = (
    Fault(
        id="F22a",
        name="topic deleted and recreated",
        run=deleted,
        after=_none_failed,
        setting=own_kafka,
    ),
    Fault(
        id="F22b",
        name="topic missing for longer than the attempts",
        run=missing_for_too_long,
        after=_undone_or_parked,
        setting=own_kafka,
    ),
    Fault(
        id="F22e",
        name="topic missing until events are blocked",
        run=missing_for_a_while,
        after=_none_failed,
        setting=own_kafka,
    ),
    Fault(
        id="F22c",
        name="partitions added",
        run=more_partitions,
        after=_moved_keys,
        setting=own_kafka,
    ),
    Fault(
        id="F22d",
        name="not enough replicas",
        run=too_few_replicas,
        after=_first_attempts,
        setting=own_kafka,
    ),
    Fault(
        id="F44",
        name="topic recreated under parked records",
        run=parked_before_and_after,
        setting=own_kafka,
    ),
)
