"""Events that an earlier release wrote: what their readers receive, and what stays as written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, LocalOutcome, Refused, RetryPolicy
from shieldtx.errors import ConfigurationError
from shieldtx.ports.broker import DeliveryOutcome
from tests.support.log_records import fields_of
from tests.support.reasons import without_site
from tests.support.service import (
    QUICK,
    App,
    Service,
    Wire,
    answer,
    drain,
)

Make = Callable[..., Service]
TYPE = "bookings.made"
SECOND, THIRD = (f"urn:shieldtx:{TYPE}:{version}" for version in (2, 3))


@dataclass
class Booking:
    """The payload of version 3."""

    room: int
    price: int
    """Cents; whole euros in version 1, which had no currency."""
    currency: str = "EUR"


def to_cents(payload: dict[str, Any]) -> dict[str, Any]:
    return payload | {"price": payload["price"] * 100}


def to_number(payload: dict[str, Any]) -> dict[str, Any]:
    return payload | {"room": int(payload["room"].removeprefix("R"))}


def refuse(_: Session, event: Event[Any]) -> None:
    raise Refused(str(event.payload))


@dataclass
class Seen:
    """The events that a handler has received."""

    events: list[Event[Any]] = field(default_factory=list)

    def one(self, _: Session, event: Event[Any]) -> None:
        self.events.append(event)

    def many(self, _: Session, events: Sequence[Event[Any]]) -> None:
        self.events += events

    def payloads(self) -> list[Any]:
        return [event.payload for event in self.events]


class Releases:
    """Applications of different releases on the tables of one service."""

    def __init__(self, service: Service, wire: Wire) -> None:
        self.service = service
        self._wire = wire
        self._opened: list[App] = []

    def release(self, version: int | None = None, upcasters: bool = True) -> App:
        """Return an application that declares a version, with the upcasters up to it."""
        app = App(self.service.app.settings, engine=self.service.engine, broker=self._wire)
        self._opened.append(app)
        for start, function in ((1, to_cents), (2, to_number)):
            if upcasters and version is not None and start < version:
                app.upcasts(TYPE, from_version=start)(function)
        payload = Booking if version == 3 else None
        app.declare(TYPE, payload=payload, version=version)
        return app

    def write(self, app: App, payload: Any, **more: Any) -> UUID:
        event = Event(type=TYPE, payload=payload, **more)
        with self.service.transaction() as session:
            app.outbox.add(session, event)
        return event.id

    def publish(self, app: App) -> None:
        relay = app.build_relay()
        relay.renew()
        drain(relay)
        relay.close()

    def close(self) -> None:
        for app in self._opened:
            app.close()


@pytest.fixture
def desk(make_service: Make, wire: Wire) -> Iterator[Releases]:
    service = make_service("desk")
    made = Releases(service, wire)
    with closing(service.app.broker.topics()) as topics:
        topics.create(
            [f"{TYPE}.{kind}" for kind in ("commit", "rollback")], partitions=1, replication=1
        )
    yield made
    made.close()


V1, V2, V3 = (
    {"room": "R7", "price": 12},
    {"room": "R7", "price": 1200},
    {"room": 7, "price": 1200},
)


def write_all_versions(desk: Releases) -> None:
    """Write one event by each release, and one by a release that declared version 1."""
    desk.write(desk.release(), V1, key="a")
    desk.write(desk.release(1), V1, key="a")
    desk.write(desk.release(2), V2, key="a")
    desk.write(desk.release(3), Booking(7, 1200), key="a")


def stored(desk: Releases, table: str) -> list[tuple[Any, ...]]:
    return desk.service.rows(f"SELECT dataschema, payload FROM {table} ORDER BY seq")


@pytest.mark.parametrize("takes_list", [False, True])
def test_handler_receives_all_versions_as_its_own(desk: Releases, takes_list: bool) -> None:
    write_all_versions(desk)
    newest, seen = desk.release(3), Seen()
    group = newest.consumer("desk")
    if takes_list:
        group.handles_many(TYPE, payload=Booking)(seen.many)
    else:
        group.handles(TYPE, payload=Booking)(seen.one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert seen.payloads() == [Booking(7, 1200)] * 4
    assert [event.dataschema for event in seen.events] == [
        None,
        f"urn:shieldtx:{TYPE}:1",
        SECOND,
        THIRD,
    ]


def test_upcast_changes_no_stored_and_no_sent_byte(desk: Releases, wire: Wire) -> None:
    write_all_versions(desk)
    written = stored(desk, "shield_outbox")
    newest = desk.release(3)
    newest.consumer("desk").handles(TYPE, payload=Booking)(Seen().one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert desk.service.inbox() == {"PROCESSED": 4}
    assert stored(desk, "shield_outbox") == stored(desk, "shield_inbox") == written
    assert [record.value.decode() for record in wire.published] == [text for _, text in written]
    assert [
        dict(record.headers).get("ce_dataschema", b"").decode() or None for record in wire.published
    ] == [schema for schema, _ in written]
    assert [json.loads(text)["price"] for _, text in written] == [12, 12, 1200, 1200]


def test_newer_version_waits_for_a_release_that_reads_it(
    desk: Releases, caplog: pytest.LogCaptureFixture
) -> None:
    newest = desk.release(3)
    newer = desk.write(newest, Booking(7, 1200), key="a")
    desk.write(newest, Booking(8, 1200), key="a")
    old, other = desk.release(), desk.write(desk.release(), V1, key="b")
    desk.publish(newest)
    seen = Seen()
    old.consumer("desk").handles(TYPE, retry=QUICK)(seen.one)
    consumer = old.build_consumer("desk")
    for _ in range(5):
        drain(consumer)
        desk.service.execute("UPDATE shield_inbox SET due_at = now() WHERE settled_at IS NULL")
    assert [event.id for event in seen.events] == [other]
    attempts = desk.service.rows(
        "SELECT attempts, last_error FROM shield_inbox WHERE event_id = :id", id=str(newer)
    )
    reason = f"the payload of {TYPE!r} has version 3; this release reads 1"
    assert attempts == [(0, f"{reason}. Deploy a release that reads this version")]
    [line] = [r for r in caplog.records if "schema_version" in fields_of(r)["action"]]
    assert (line.levelname, fields_of(line)["action"]) == ("WARNING", "schema_version_unknown")
    consumer.close()
    after = Seen()
    newest.consumer("desk").handles(TYPE, payload=Booking)(after.one)
    drain(newest.build_consumer("desk"))
    assert after.payloads() == [Booking(7, 1200), Booking(8, 1200)]
    assert set(desk.service.outbox()) == {"PROCESSED"}


def test_wait_for_a_release_lasts_a_minute_at_most(desk: Releases) -> None:
    newest = desk.release(3)
    desk.write(newest, Booking(7, 1200))
    desk.publish(newest)
    old = desk.release()
    old.consumer("desk").handles(TYPE)(Seen().one)
    drain(old.build_consumer("desk"))
    [(wait,)] = desk.service.rows("SELECT due_at - received_at FROM shield_inbox")
    assert timedelta(seconds=55) < wait <= timedelta(seconds=65)


def test_version_without_an_upcaster_waits(desk: Releases) -> None:
    desk.write(desk.release(), V1)
    newest, seen = desk.release(3, upcasters=False), Seen()
    newest.consumer("desk").handles(TYPE, payload=Booking)(seen.one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert (seen.events, desk.service.inbox()) == ([], {"PROCESSING": 1})


def test_compensation_receives_the_original_as_its_own_version(desk: Releases) -> None:
    original = desk.write(desk.release(), V1, key="a")
    newest, seen = desk.release(3), Seen()
    newest.consumer("billing").handles(TYPE)(refuse)
    newest.consumer("desk").compensates(TYPE, payload=Booking)(seen.one)
    desk.publish(newest)
    drain(newest.build_consumer("billing"))
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert [(e.id, e.payload, e.dataschema) for e in seen.events] == [
        (original, Booking(7, 1200), None)
    ]
    rollback = "SELECT dataschema FROM shield_outbox WHERE tx_kind = 'ROLLBACK'"
    assert desk.service.rows(rollback) == [(None,)]


def test_local_rollback_receives_its_own_version(desk: Releases, wire: Wire) -> None:
    desk.write(desk.release(), V1)
    newest, seen = desk.release(3), Seen()
    newest.local_rollback(TYPE)(seen.one)
    wire.fate = lambda _: answer(DeliveryOutcome.REJECTED)
    desk.publish(newest)
    assert desk.service.outbox() == {"FAILED": 1}
    assert seen.payloads() == [Booking(7, 1200)]


def test_check_back_receives_its_own_version(desk: Releases) -> None:
    old = desk.release()
    old.half_prepare(TYPE, V1, immunity=timedelta(0))
    newest, checked = desk.release(3), []

    @newest.checks(TYPE)
    def outcome_of(event: Event[Booking]) -> LocalOutcome:
        checked.append(event.payload)
        return LocalOutcome.COMMIT

    [check] = newest.half_messages.check_backs()
    check.run_once()
    assert checked == [Booking(7, 1200)]
    newest.consumer("desk").handles(TYPE, payload=Booking)((seen := Seen()).one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert (seen.payloads(), seen.events[0].dataschema) == ([Booking(7, 1200)], None)


def test_delayed_event_keeps_the_version_of_its_release(desk: Releases) -> None:
    old = desk.release(2)
    with desk.service.transaction() as session:
        old.outbox.add(session, Event(type=TYPE, payload=V2), delay=timedelta(hours=1))
    newest, seen = desk.release(3), Seen()
    newest.consumer("desk").handles(TYPE, payload=Booking)(seen.one)
    desk.service.execute("UPDATE shield_outbox SET due_at = now()")
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    assert [(e.payload, e.dataschema) for e in seen.events] == [(Booking(7, 1200), SECOND)]


def test_failing_upcaster_is_retried_and_at_last_given_up(desk: Releases) -> None:
    desk.write(desk.release(), {"room": "R7"})
    newest, seen = desk.release(3), Seen()
    newest.consumer("desk").handles(TYPE, payload=Booking, retry=QUICK)(seen.one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    [(status, attempts, reason)] = desk.service.rows(
        "SELECT status, attempts, last_error FROM shield_inbox"
    )
    assert (status, attempts, seen.events) == ("MAX_RECONSUMED", 3, [])
    assert without_site(reason).endswith(
        "the upcaster of 'bookings.made' from version 1, raised KeyError"
    )


def test_misfit_after_upcasters_is_retried(desk: Releases) -> None:
    desk.write(desk.release(), {"room": "R7", "price": 12, "currency": None})
    newest, seen = desk.release(3), Seen()
    slow = RetryPolicy(first=timedelta(minutes=9))
    newest.consumer("desk").handles(TYPE, payload=Booking, retry=slow)(seen.one)
    desk.publish(newest)
    drain(newest.build_consumer("desk"))
    [(status, reason)] = desk.service.rows("SELECT status, last_error FROM shield_inbox")
    assert (status, seen.events) == ("PROCESSING", [])
    assert "does not fit version 3 after its upcasters from version 1: payload.currency" in reason


def test_event_in_the_list_of_an_old_handler_waits_alone(desk: Releases) -> None:
    newest = desk.release(3)
    readable = [desk.write(desk.release(), V1) for _ in range(2)]
    desk.write(newest, Booking(7, 1200))
    readable += [desk.write(desk.release(), V1) for _ in range(2)]
    desk.publish(newest)
    old, seen = desk.release(), Seen()
    old.consumer("desk").handles_many(TYPE)(seen.many)
    drain(old.build_consumer("desk"))
    assert sorted(event.id for event in seen.events) == sorted(readable)
    assert desk.service.inbox() == {"PROCESSED": 4, "PROCESSING": 1}


def test_replayed_dead_letter_is_sent_with_its_own_version(desk: Releases, wire: Wire) -> None:
    event_id = desk.write(desk.release(2), V2)
    newest = desk.release(3)
    wire.fate = lambda _: answer(DeliveryOutcome.REJECTED)
    desk.publish(newest)
    wire.fate = lambda _: None
    letters = newest.stores.dead_letters()
    letters.replay(letters.find(event_id), who="ops")
    desk.publish(newest)
    [record] = wire.published
    assert dict(record.headers)["ce_dataschema"].decode() == SECOND
    assert json.loads(record.value) == V2


@pytest.mark.parametrize("is_relay", [True, False])
def test_gap_between_upcasters_stops_the_start(desk: Releases, is_relay: bool) -> None:
    app = App(desk.service.app.settings, engine=desk.service.engine, broker=desk._wire)
    app.upcasts(TYPE, from_version=1)(to_cents)
    if is_relay:
        app.declare(TYPE, version=3)
    else:
        app.consumer("desk").handles(TYPE, version=3)(Seen().one)
    build = app.build_relay if is_relay else lambda: app.build_consumer("desk")
    with pytest.raises(ConfigurationError, match=r"version 2 has no upcaster"):
        build()
    app.close()
