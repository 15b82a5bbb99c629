"""An operator replays parked records: checked, received and audited, each in one transaction."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import event as sa_event
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx, TxKind, new_event_id
from shieldtx.brokers import signing
from shieldtx.domain.events import Envelope
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.store.dead_letter_rows import ParkedRecord
from shieldtx.store.parked_replays import ParkedReplay, ReplayResult
from shieldtx.testing.memory_broker import MemoryBroker

KEY, OTHER_KEY = "k" * 32, "o" * 32
MISSING = "ce_signature: is not that of this record"
GROUP = "stock"


class Service:
    """A service whose group handles orders.placed and compensates stock.reserved."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.broker = MemoryBroker()
        self.app = ShieldTx(
            Settings(source="stock", database_url=url, shards=4, relay_wakeup=False, **settings),
            broker=self.broker,
        )
        self.app.schema.upgrade()
        self.handled: list[str] = []
        self.app.declare("stock.reserved")
        group = self.app.consumer(GROUP)

        @group.handles("orders.placed")
        def reserve(session: Session, event: Event) -> None:
            self.handled.append(event.payload["name"])

        @group.compensates("stock.reserved", authorised=["orders"])
        def release(session: Session, event: Event) -> None:
            self.handled.append(f"released {event.payload['name']}")

        self.broker.topics().create(self.app.topics(), partitions=1, replication=1)
        self.offsets = iter(range(1000))

    def again(self, **settings: Any) -> Service:
        """Return the same service with other settings, as another process has them."""
        return Service(self.url, **settings)

    def record(self, envelope: Envelope, *keys: str) -> ReceivedRecord:
        sent = signing.encode(envelope, "", [SecretStr(key) for key in keys])
        return ReceivedRecord(sent.topic, 0, next(self.offsets), sent.key, sent.value, sent.headers)

    def park(self, record: ReceivedRecord, reason: str = "the cause is repaired") -> ParkedRecord:
        self.app.stores.inbox().receive(GROUP, [], [Parked(record=record, reason=reason)])
        return next(parked for parked in self.parked() if parked.record.offset == record.offset)

    def receive(self, envelope: Envelope) -> None:
        arrival = IncomingEvent(envelope=envelope, record=self.record(envelope))
        self.app.stores.inbox().receive(GROUP, [arrival], [])

    def parked(self) -> list[ParkedRecord]:
        return list(self.app.stores.dead_letters().parked(limit=100, values=False))

    def replay(self, *records: ParkedRecord, who: str = "ann", **more: Any) -> list[ParkedReplay]:
        replays, check = self.app.stores.parked_replays(), self.app.parked_check()
        return list(replays.replay(records or self.parked(), check, who=who, **more))

    def consume(self) -> None:
        consumer = self.app.build_consumer(GROUP)
        while consumer.run_once().more:
            continue
        consumer.close()

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with self.app.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    def execute(self, statement: str) -> None:
        with self.app.engine.begin() as connection:
            connection.execute(text(statement))

    def inbox(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT status, attempts FROM shield_inbox ORDER BY seq")

    def audits(self) -> list[dict[str, Any]]:
        found = self.rows("SELECT who, action, subject, detail FROM shield_audit ORDER BY id")
        return [
            {"who": who, "action": action, "subject": subject} | json.loads(detail)
            for who, action, subject, detail in found
        ]


def placed(name: str = "a", **fields: Any) -> Envelope:
    values: dict[str, Any] = {
        "id": new_event_id(),
        "type": "orders.placed",
        "source": "orders",
        "topic": "orders.placed",
        "key": "k1",
        "payload": json.dumps({"name": name}),
        "time": datetime.now(UTC),
        "kind": TxKind.COMMIT,
    }
    return Envelope(**(values | fields))


def refusal_of(event_id: Any, source: str = "orders") -> Envelope:
    return placed(
        type="stock.reserved",
        topic="stock.reserved",
        source=source,
        kind=TxKind.ROLLBACK,
        payload="{}",
        causation_id=event_id,
        causation_source="stock",
    )


@pytest.fixture(params=["postgresql", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []
    url = f"sqlite:///{tmp_path}/service.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_url")

    def build(**settings: Any) -> Service:
        made.append(Service(url, **settings))
        return made[-1]

    yield build
    for service in made:
        service.app.engine.dispose()


@pytest.fixture
def service(make: Callable[..., Service]) -> Service:
    return make()


def test_replayed_record_is_received_and_handled_once(service: Service) -> None:
    event = placed()
    parked = service.park(service.record(event))

    [result] = service.replay()

    assert (result.result, result.event_id, result.done) == ("RECEIVED", event.id, True)
    assert service.inbox() == [("INIT", 0)]
    assert service.parked() == []
    [note] = service.audits()
    assert (note["who"], note["action"], note["subject"]) == ("ann", "replay", str(parked))
    assert (note["from"], note["to"], note["event_id"]) == ("PARKED", "INIT", str(event.id))
    assert note["reason"] == "the cause is repaired"
    service.consume()
    assert service.handled == ["a"]
    assert service.inbox() == [("PROCESSED", 1)]


def test_rollback_is_replayed_with_the_key_that_was_missing(make: Callable[..., Service]) -> None:
    workers = make(signing_key=OTHER_KEY)
    with Session(workers.app.engine) as session, session.begin():
        reserved = Event(type="stock.reserved", payload={"name": "b"}, key="k1")
        event_id = workers.app.outbox.add(session, reserved)
    record = workers.record(refusal_of(event_id), KEY)
    workers.park(record, MISSING)
    [refused] = workers.replay()
    assert refused.result == "STILL_PARKED"

    repaired = make(signing_key=f"{OTHER_KEY},{KEY}")
    [replayed] = repaired.replay()
    repaired.consume()

    assert replayed.result == "RECEIVED"
    assert repaired.handled == ["released b"]


@pytest.mark.parametrize("is_signed", [True, False])
def test_process_without_keys_decides_no_signature(service: Service, is_signed: bool) -> None:
    record = service.record(refusal_of(new_event_id()), *([KEY] if is_signed else []))
    service.park(record, "ce_txkind: the header is missing" if is_signed else MISSING)
    [before] = service.parked()

    [result] = service.replay()

    assert result.result == "UNDECIDED"
    assert "set SHIELDTX_SIGNING_KEY as for the workers" in result.problem
    assert (service.parked(), service.inbox(), service.audits()) == ([before], [], [])


def test_record_of_an_unauthorised_source_stays_parked(service: Service) -> None:
    service.park(service.record(refusal_of(new_event_id(), source="mallory")))

    [result] = service.replay()
    again = service.replay()

    assert result.result == "STILL_PARKED"
    assert "is not authorised to send a ROLLBACK" in result.problem
    [parked] = service.parked()
    assert parked.reason == result.problem == again[0].problem
    assert service.inbox() == []
    # Only the change of the reason: the second replay has changed nothing.
    [note] = service.audits()
    assert (note["from"], note["to"]) == ("PARKED", "PARKED")
    assert (note["reason"], note["new_reason"]) == ("the cause is repaired", result.problem)


def test_unreadable_record_stays_parked(service: Service) -> None:
    service.park(ReceivedRecord("orders.placed.commit", 0, 1, b"k", b"\xff", ()))

    [result] = service.replay()

    assert (result.result, result.problem) == (
        "STILL_PARKED",
        "ce_specversion: the header is missing",
    )


def test_process_with_another_topic_prefix_decides_nothing(make: Callable[..., Service]) -> None:
    parked = make().park(make().record(placed()))
    other = make(topic_prefix="test.")

    [result] = other.replay()

    assert result.result == "UNDECIDED"
    assert "does not read topic orders.placed.commit in this application" in result.problem
    assert other.parked() == [parked]


def test_group_without_the_handler_decides_nothing(service: Service) -> None:
    service.park(service.record(placed(type="orders.paid")))

    [result] = service.replay()

    assert result.result == "UNDECIDED"
    assert "no handler for COMMIT of 'orders.paid' in this application" in result.problem
    assert len(service.parked()) == 1


def test_event_that_was_received_before_is_a_duplicate(service: Service) -> None:
    event = placed()
    service.receive(event)
    service.consume()
    service.park(service.record(event))

    [result] = service.replay()
    service.consume()

    assert (result.result, result.event_id) == ("DUPLICATE", event.id)
    assert (service.handled, service.parked()) == (["a"], [])
    assert [note["to"] for note in service.audits()] == ["DUPLICATE"]


def test_two_records_of_one_event_have_one_effect(service: Service) -> None:
    event = placed()
    for _ in range(2):
        service.park(service.record(event))

    results = service.replay()
    service.consume()

    assert [each.result for each in results] == ["RECEIVED", "DUPLICATE"]
    assert service.handled == ["a"]


def test_event_whose_rollback_came_first_stays_fenced(service: Service) -> None:
    event = placed()
    service.park(service.record(event))
    service.receive(event)
    service.execute("UPDATE shield_inbox SET status = 'FENCED', settled_at = received_at")

    [result] = service.replay()
    service.consume()

    assert (result.result, service.handled) == ("DUPLICATE", [])


def test_business_key_of_another_event_keeps_the_record_parked(service: Service) -> None:
    service.receive(placed("first", biz_key="4711"))
    service.park(service.record(placed("second", biz_key="4711")))
    other = service.park(service.record(placed("third", biz_key="4712")))

    second, third = service.replay()
    service.consume()

    assert (second.result, third.result) == ("STILL_PARKED", "RECEIVED")
    assert "business key of event type 'orders.placed' was received before" in second.problem
    assert third.record.ref == other.ref
    assert service.handled == ["first", "third"]
    assert [parked.reason for parked in service.parked()] == [second.problem]


def test_replayed_events_come_after_the_open_events_of_their_key(service: Service) -> None:
    for name in ("1", "2"):
        service.park(service.record(placed(name)))
    service.receive(placed("open"))

    # Newest first, as in a list: the offsets decide.
    assert [each.result for each in service.replay()] == ["RECEIVED", "RECEIVED"]
    service.consume()

    assert service.handled == ["open", "1", "2"]


def test_discarded_and_missing_records_do_not_wait(service: Service) -> None:
    discarded = service.park(service.record(placed()))
    gone = service.park(service.record(placed()))
    service.app.stores.discards().discard([discarded], who="bob", reason="test")
    service.replay(gone)

    results = service.replay(discarded, gone)

    assert [(each.result, each.problem) for each in results] == [
        ("NOT_WAITING", "it is DISCARDED"),
        ("NOT_WAITING", "it is no longer parked"),
    ]
    assert len(service.inbox()) == 1


def test_event_from_before_a_purge_needs_a_decision(service: Service) -> None:
    written = datetime.now(UTC) - timedelta(days=40)
    service.park(service.record(placed("old", time=written)))
    service.park(service.record(placed("new")))
    until = (datetime.now(UTC) - timedelta(days=1)).isoformat(sep=" ")
    service.execute(f"INSERT INTO shield_purged VALUES ('inbox', '{until}')")

    old, new = service.replay()

    assert (old.result, new.result) == ("UNDECIDED", "RECEIVED")
    assert "up to which the inbox is purged" in old.problem
    assert len(service.parked()) == 1
    [old] = service.replay(also_purged=True)
    assert old.result == "RECEIVED"


def test_event_that_the_database_refuses_stays_parked_alone(make: Callable[..., Service]) -> None:
    service = make()
    if service.app.engine.dialect.name == "sqlite":
        service.execute(
            "CREATE TRIGGER refusal BEFORE INSERT ON shield_inbox WHEN NEW.key = 'refused' "
            "BEGIN SELECT RAISE(ABORT, 'constraint failed'); END"
        )
    else:
        service.execute("ALTER TABLE shield_inbox ADD CHECK (key <> 'refused') NOT VALID")
    for key in ("a", "refused", "b", "c"):
        service.park(service.record(placed(key, key=key)))

    results = service.replay()
    service.consume()

    expected = ["RECEIVED", "STILL_PARKED", "RECEIVED", "RECEIVED"]
    assert [each.result for each in results] == expected
    assert results[1].problem.startswith("the inbox refuses it: ")
    assert sorted(service.handled) == ["a", "b", "c"]
    assert [parked.reason for parked in service.parked()] == [results[1].problem]


def test_replay_without_its_audit_entry_does_not_happen(service: Service) -> None:
    service.park(service.record(placed()))
    service.execute("ALTER TABLE shield_audit RENAME TO hidden")

    with pytest.raises(DBAPIError):
        service.replay()

    assert (len(service.parked()), service.inbox()) == (1, [])


def test_one_of_two_concurrent_operators_replays(migrated_url: str) -> None:
    service = Service(migrated_url)
    for number in range(20):
        service.park(service.record(placed(str(number))))
    records, both = service.parked(), threading.Barrier(2)
    results: dict[str, list[ParkedReplay]] = {}
    waited: set[int] = set()

    def wait_for_the_other(
        connection: object, cursor: object, statement: str, *rest: object
    ) -> None:
        if "UPDATE shield_parked" in statement and threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            both.wait(timeout=10)

    def replay(who: str, chosen: list[ParkedRecord]) -> None:
        results[who] = service.replay(*chosen, who=who)

    sa_event.listen(service.app.engine, "before_cursor_execute", wait_for_the_other)
    people = [
        threading.Thread(target=replay, args=("ann", records)),
        threading.Thread(target=replay, args=("bob", records[::-1])),
    ]
    for person in people:
        person.start()
    for person in people:
        person.join(timeout=20)
    sa_event.remove(service.app.engine, "before_cursor_execute", wait_for_the_other)

    outcomes = [each.result for of_one in results.values() for each in of_one]
    assert outcomes.count(ReplayResult.RECEIVED) == 20
    assert outcomes.count(ReplayResult.NOT_WAITING) == 20
    assert (len(service.inbox()), len(service.audits())) == (20, 20)
    service.app.engine.dispose()
