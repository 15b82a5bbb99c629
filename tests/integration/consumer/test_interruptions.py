"""Errors in a pass that `except Exception` does not catch: they end the process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.app.workers import consumer_process, relay_process
from shieldtx.hooks.contexts import SendContext
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.store.inbox_store import SqlInboxStore
from tests.support.log_records import logged
from tests.support.service import QUICK, Service, Wire, answer, drain, make_topics

BATCH = 4


@pytest.fixture
def service(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders", relay_batch_size=BATCH)
    service.app.declare("things.happened", retry=QUICK)
    make_topics(service)
    return service


def write(service: Service, *payloads: int) -> None:
    with service.transaction() as session:
        for number in payloads:
            service.app.outbox.add(session, Event(type="things.happened", key="k", payload=number))


def payloads(wire: Wire) -> list[int]:
    """Return the payloads that were sent, each once."""
    return list(dict.fromkeys(int(record.value or b"") for record in wire.published))


class Once:
    """Raises an error at its first call."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, _context: SendContext) -> None:
        self.calls += 1
        if self.calls == 1:
            raise self.error


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit], ids=str)
@pytest.mark.parametrize("backlog", [3, 3 * BATCH], ids=["alone", "beside"])
def test_interrupted_batch_is_sent_before_later_events(
    service: Service, wire: Wire, error: type[BaseException], backlog: int
) -> None:
    service.app.hooks.before_send(Once(error))
    write(service, *range(backlog))
    relay = service.relay()
    with pytest.raises(error):
        relay.run_once()
    write(service, backlog)
    drain(relay)
    assert payloads(wire) == list(range(backlog + 1))
    assert service.outbox() == {"PROCESSED": backlog + 1}


def test_events_sent_before_an_interruption_are_unconfirmed(service: Service, wire: Wire) -> None:
    service.app.hooks.after_send(Once(SystemExit))
    write(service, 1)
    relay = service.relay()
    with pytest.raises(SystemExit):
        relay.run_once()
    relay.close()
    assert service.rows("SELECT status, attempts, unconfirmed FROM shield_outbox") == [
        ("INIT", 0, True)
    ]


def test_an_interrupted_local_rollback_comes_before_later_events(
    service: Service, wire: Wire
) -> None:
    runs = []

    @service.app.local_rollback("things.happened")
    def undo(session: Session, event: Event) -> None:
        runs.append(event.id)
        if len(runs) == 1:
            raise SystemExit

    def reject_the_first(record: Record) -> object:
        return answer(DeliveryOutcome.REJECTED) if record.value == b"0" else None

    wire.fate = reject_the_first
    write(service, 0, 1)
    relay = service.relay()
    with pytest.raises(SystemExit):
        relay.run_once()
    drain(relay)
    assert len(runs) == 2
    assert service.outbox() == {"FAILED": 1, "PROCESSED": 1}


def test_a_hook_that_exits_ends_the_relay_with_its_status(service: Service, wire: Wire) -> None:
    @service.app.hooks.before_send
    def exit_(context: SendContext) -> None:
        raise SystemExit(3)

    write(service, 1, 2)
    assert relay_process(service.app).run() == 3
    assert service.outbox() == {"INIT": 2}
    assert service.rows("SELECT count(*) FROM shield_shard WHERE owner IS NOT NULL") == [(0,)]
    assert not wire.published


@pytest.mark.parametrize("alone", [False, True], ids=["in a batch", "alone"])
def test_handler_that_exits_ends_the_consumer_with_a_reason(
    make_service: Callable[..., Service], service: Service, *, alone: bool
) -> None:
    downstream = make_service("stock")

    @downstream.app.consumer("stock").handles("things.happened", retry=QUICK, alone=alone)
    def exit_(session: Session, event: Event) -> None:
        raise SystemExit(4)

    write(service, 1)
    drain(service.relay())
    assert consumer_process(downstream.app, "stock").run() == 4
    [(status, attempts, reason)] = downstream.rows(
        "SELECT status, attempts, last_error FROM shield_inbox"
    )
    assert (status, attempts) == ("PROCESSING", 1)
    assert "SystemExit: 4" in reason


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_log_of_an_unrecorded_interruption_shows_no_payload(
    make_service: Callable[..., Service],
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    alone: bool,
) -> None:
    stock = make_service("stock")

    @stock.app.consumer("stock").handles("things.happened", retry=QUICK, alone=alone)
    def exit_(session: Session, event: Event) -> None:
        raise SystemExit(4)

    def note(*_: object, **__: object) -> None:
        raise TimeoutError("no connection of the pool is free")

    monkeypatch.setattr(SqlInboxStore, "note", note)
    write(service, 8_271_828)
    drain(service.relay())
    consumer = stock.app.build_consumer("stock")
    with pytest.raises(SystemExit):
        consumer.run_once()
    (fields,) = logged(caplog.records, "interruption_not_recorded")
    assert (fields["group"], fields["count"]) == ("stock", 1)
    assert fields["event_types"] == ["things.happened"]
    assert "8271828" not in caplog.text
