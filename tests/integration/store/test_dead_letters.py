"""An operator finds permanent failures and replays them, with an audit."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from shieldtx import (
    Event,
    InboxStatus,
    OutboxStatus,
    RetryPolicy,
    Settings,
    ShieldTx,
    new_event_id,
)
from shieldtx.domain.events import Envelope
from shieldtx.domain.states import INBOX, OUTBOX, TxKind
from shieldtx.errors import IllegalTransition
from shieldtx.ports.broker import DeliveryOutcome, ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.store.dead_letter_rows import REPLAY, DeadLetter
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.reasons import without_site


class Service:
    """A service with a broker in memory, whose events can be made to fail."""

    def __init__(self, url: str) -> None:
        settings = Settings(source="orders", database_url=url, shards=4, relay_wakeup=False)
        self.broker = MemoryBroker()
        self.app = ShieldTx(settings, broker=self.broker)
        self.app.schema.upgrade()
        self.app.declare("orders.placed")
        self.broken = True
        group = self.app.consumer("orders")

        @group.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))
        def cancel(session: Session, event: Event) -> None:
            if self.broken:
                raise ValueError("no such order")

        self.broker.topics().create(self.app.topics(), partitions=1, replication=1)
        self.letters = self.app.stores.dead_letters()
        self.inbox = SqlInboxStore(self.app.engine, self.app.tables)

    def write(self, key: str | None = None) -> UUID:
        with Session(self.app.engine) as session, session.begin():
            placed = Event(type="orders.placed", payload={"n": 1}, key=key)
            return self.app.outbox.add(session, placed)

    def relay(self) -> None:
        relay = self.app.build_relay()
        while relay.run_once().more:
            continue
        relay.close()

    def failed(self, key: str | None = None) -> UUID:
        """Write an event that the broker always rejects."""
        event_id = self.write(key)
        self.broker.fail_next(DeliveryOutcome.REJECTED)
        self.relay()
        return event_id

    def dead(self, event_id: UUID, group: str = "orders") -> Envelope:
        """Receive a rollback of an event, whose compensation fails permanently."""
        rollback = Envelope(
            id=new_event_id(),
            type="orders.placed",
            source="stock",
            topic="orders.placed",
            payload="{}",
            time=datetime.now(UTC),
            kind=TxKind.ROLLBACK,
            causation_id=event_id,
            causation_source="orders",
        )
        self.inbox.receive(group, [IncomingEvent(envelope=rollback, record=RECORD)], [])
        if group == "orders":
            self.consume()
        return rollback

    def consume(self) -> None:
        consumer = self.app.build_consumer("orders")
        while consumer.run_once().more:
            continue
        consumer.close()

    def find_one(self, event_id: UUID) -> DeadLetter:
        (letter,) = self.letters.find(event_id)
        return letter

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with self.app.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def audits(self) -> list[tuple[object, ...]]:
        return self.rows("SELECT who, action, subject, detail FROM shield_audit ORDER BY id")


RECORD = ReceivedRecord(
    topic="orders.placed.rollback", partition=3, offset=41, key=None, value=b"{}"
)


@pytest.fixture(params=["postgresql", "sqlite"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    url = f"sqlite:///{tmp_path}/service.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_url")
    service = Service(url)
    yield service
    service.app.engine.dispose()


@pytest.fixture
def postgres_service(migrated_url: str) -> Iterator[Service]:
    service = Service(migrated_url)
    yield service
    service.app.engine.dispose()


def test_operator_can_replay_exactly_the_allowed_states() -> None:
    by_hand = {
        transition.source: transition.target
        for lifecycle in (OUTBOX, INBOX)
        for transition in lifecycle.transitions
        if transition.cause == "an operator replays"
    }
    assert by_hand == REPLAY


def test_failed_events_and_dead_compensations_are_listed(
    service: Service,
) -> None:
    failed = service.failed()
    rollback = service.dead(service.write())
    service.relay()

    dead_letter, failed_letter = service.letters.latest(limit=10)

    assert (failed_letter.envelope.id, failed_letter.group) == (failed, None)
    assert failed_letter.status is OutboxStatus.FAILED
    assert "REJECTED" in failed_letter.reason
    assert (dead_letter.envelope.id, dead_letter.group) == (rollback.id, "orders")
    assert dead_letter.status is InboxStatus.DEAD
    assert without_site(dead_letter.reason) == "ValueError: no such order"


def test_list_can_be_limited_and_filtered_by_group_or_topic(service: Service) -> None:
    service.failed()
    rollback = service.dead(service.write())

    assert len(service.letters.latest(limit=1)) == 1
    assert [x.envelope.id for x in service.letters.latest(limit=9, group="orders")] == [rollback.id]
    assert len(service.letters.latest(limit=9, topic="orders.placed")) == 2
    assert service.letters.latest(limit=9, topic="orders.paid") == []
    assert service.letters.latest(limit=9, group="mail") == []


def test_event_is_found_with_its_payload_in_any_state(service: Service) -> None:
    event_id = service.write("k1")

    letter = service.find_one(event_id)

    assert letter.status is OutboxStatus.INIT
    assert json.loads(letter.envelope.payload) == {"n": 1}
    assert not letter.can_be_replayed
    assert service.letters.find(new_event_id()) == []


def test_a_replayed_failed_event_is_published(service: Service) -> None:
    letter = service.find_one(service.failed())

    service.letters.replay([letter], who="ann@desk")
    assert service.rows("SELECT status, attempts FROM shield_outbox") == [("INIT", 0)]
    service.relay()

    assert service.rows("SELECT status FROM shield_outbox") == [("PROCESSED",)]
    assert len(service.broker.records("orders.placed.commit")) == 1


def test_a_replayed_compensation_runs_again(service: Service) -> None:
    letter = service.find_one(service.dead(service.write()).id)
    service.broken = False

    service.letters.replay([letter], who="ann@desk")
    service.consume()

    assert service.rows("SELECT status, attempts FROM shield_inbox") == [("PROCESSED", 1)]


def test_replay_is_audited(service: Service) -> None:
    event_id = service.failed()

    service.letters.replay([service.find_one(event_id)], who="ann@desk")

    ((who, action, subject, detail),) = service.audits()
    assert (who, action) == ("ann@desk", "replay")
    assert subject == f"event {event_id} in the outbox"
    said = json.loads(str(detail))
    assert (said["from"], said["to"], said["event_type"]) == ("FAILED", "INIT", "orders.placed")
    assert said["attempts"] == 1
    assert "REJECTED" in said["reason"]


@pytest.mark.parametrize("status", sorted(set(OUTBOX.states) - {OutboxStatus.FAILED}))
def test_an_outbox_row_in_any_other_state_is_left_alone(
    status: OutboxStatus, postgres_service: Service
) -> None:
    service = postgres_service
    event_id = service.failed()
    with service.app.engine.begin() as connection:
        connection.execute(text("UPDATE shield_outbox SET status = :s"), {"s": status.value})

    with pytest.raises(IllegalTransition, match=f"is {status}: only FAILED"):
        service.letters.replay([service.find_one(event_id)], who="ann@desk")

    assert service.rows("SELECT status FROM shield_outbox") == [(status.value,)]
    assert service.audits() == []


@pytest.mark.parametrize("status", sorted(set(INBOX.states) - {InboxStatus.DEAD}))
def test_an_inbox_row_in_any_other_state_is_left_alone(
    status: InboxStatus, postgres_service: Service
) -> None:
    service = postgres_service
    rollback = service.dead(service.write())
    with service.app.engine.begin() as connection:
        connection.execute(text("UPDATE shield_inbox SET status = :s"), {"s": status.value})

    with pytest.raises(IllegalTransition, match=f"is {status}: only FAILED"):
        service.letters.replay([service.find_one(rollback.id)], who="ann@desk")

    assert service.rows("SELECT status FROM shield_inbox") == [(status.value,)]
    assert service.audits() == []


def test_several_are_replayed_together_or_not_at_all(service: Service) -> None:
    good = service.find_one(service.failed())
    replayed = service.find_one(service.failed())
    service.letters.replay([replayed], who="ann@desk")

    with pytest.raises(IllegalTransition, match=str(replayed.envelope.id)):
        service.letters.replay([good, replayed], who="bob@desk")

    assert service.find_one(good.envelope.id).status is OutboxStatus.FAILED
    assert [who for who, *_ in service.audits()] == ["ann@desk"]


def test_one_of_two_concurrent_operators_replays(postgres_service: Service) -> None:
    service = postgres_service
    letter = service.find_one(service.failed())
    both_asked = threading.Barrier(2)
    refused: list[str] = []

    def wait_for_the_other(
        connection: object, cursor: object, statement: str, *rest: object
    ) -> None:
        if "FOR UPDATE" in statement:
            both_asked.wait(timeout=10)

    def replay(who: str) -> None:
        try:
            service.letters.replay([letter], who=who)
        except IllegalTransition:
            refused.append(who)

    event.listen(service.app.engine, "before_cursor_execute", wait_for_the_other)
    people = [threading.Thread(target=replay, args=[who]) for who in ("ann", "bob")]
    for person in people:
        person.start()
    for person in people:
        person.join(timeout=20)
    event.remove(service.app.engine, "before_cursor_execute", wait_for_the_other)

    ((who, *_),) = service.audits()
    assert {who, *refused} == {"ann", "bob"}


def test_letters_that_still_wait_are_replayed_and_others_left(service: Service) -> None:
    failed, replayed = (service.find_one(service.failed()) for _ in range(2))
    dead = service.find_one(service.dead(service.write()).id)
    service.letters.replay([replayed], who="ann@desk")

    results = service.letters.replay_waiting([failed, replayed, dead], who="bob@desk")

    outcomes = {str(each.letter): (each.done, each.status) for each in results}
    assert outcomes == {
        str(failed): (True, None),
        str(replayed): (False, "INIT"),
        str(dead): (True, None),
    }
    assert service.find_one(dead.envelope.id).status is InboxStatus.PROCESSING
    assert [who for who, *_ in service.audits()] == ["ann@desk", "bob@desk", "bob@desk"]
    again = service.letters.replay_waiting([failed, dead], who="eve@desk")
    assert not any(each.done for each in again)
    assert len(service.audits()) == 3


def test_lists_of_letters_are_without_payloads(service: Service) -> None:
    service.failed()

    [letter] = service.letters.latest(limit=1)

    assert letter.envelope.payload == ""


def test_rollback_dead_in_two_groups_is_replayed_in_one(
    postgres_service: Service,
) -> None:
    service = postgres_service
    rollback = service.dead(service.write())
    service.inbox.receive("ledger", [IncomingEvent(envelope=rollback, record=RECORD)], [])
    with service.app.engine.begin() as connection:
        connection.execute(
            text("UPDATE shield_inbox SET status = 'DEAD', settled_at = now(), last_error = 'x'")
        )
    ledger, orders = service.letters.find(rollback.id)

    service.letters.replay([ledger], who="ann@desk")

    assert service.rows("SELECT consumer_group, status FROM shield_inbox ORDER BY 1") == [
        (ledger.group, "PROCESSING"),
        (orders.group, "DEAD"),
    ]


def test_parked_records_are_listed_and_found_unchanged(service: Service) -> None:
    record = ReceivedRecord(
        topic="orders.placed.rollback",
        partition=2,
        offset=7,
        key=b"\xff\x00",
        value=b"not json",
        headers=(("ce_id", b"\xfe"), ("empty", None)),
    )
    service.inbox.receive("orders", [], [Parked(record=record, reason="value: is not JSON")])

    (parked,) = service.letters.parked(limit=10)

    assert (parked.group, parked.record) == ("orders", record)
    assert parked.reason == "value: is not JSON"
    address = {"topic": record.topic, "partition": 2, "offset": 7}
    assert service.letters.find_parked(group="orders", **address) == [parked]
    assert service.letters.find_parked(group="mail", **address) == []
    assert service.letters.parked(limit=10, group="mail") == []
    assert service.letters.parked(limit=10, topics=["orders.placed.commit"]) == []
    assert service.letters.parked(limit=10, topics=[record.topic]) == [parked]


def test_parked_records_are_found_by_partition_up_to_a_limit(service: Service) -> None:
    records = [RECORD._replace(partition=partition) for partition in range(3)]
    service.inbox.receive("orders", [], [Parked(record=r, reason="no event") for r in records])

    found = service.letters.find_parked(group="orders", topic=RECORD.topic, partition=1, offset=41)

    assert [parked.record for parked in found] == [records[1]]
    assert len(service.letters.parked(limit=2)) == 2


def wait_for_the_next_millisecond() -> None:
    """The resolution of SQLite's clock: shorter intervals are not distinguished."""
    began = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == began:
        continue


def test_records_of_a_recreated_topic_are_parked_separately(
    service: Service,
) -> None:
    def park(value: bytes | None) -> None:
        record = ReceivedRecord("orders.placed.commit", 0, 3, b"k", value)
        service.inbox.receive("orders", [], [Parked(record=record, reason="no event")])
        wait_for_the_next_millisecond()

    for value in (b"former", b"former", b"recreated", b"", None, b"recreated"):
        park(value)

    address = {"group": "orders", "topic": "orders.placed.commit", "partition": 0, "offset": 3}
    found = service.letters.find_parked(**address)
    assert [parked.record.value for parked in found] == [None, b"", b"recreated", b"former"]
    for parked in found:
        assert service.letters.find_parked(**address, digest=parked.digest) == [parked]
