"""A handler with a defect is paused before its events are given up, and resumes by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy
from shieldtx.consumer.consumer import Consumer
from tests.support.handler_styles import STYLES
from tests.support.log_records import fields_of
from tests.support.service import QUICK, Service, drain, effect, make_topics

HANDLER_STYLES = STYLES
Make = Callable[..., Service]
EVENTS = 100
KEYS = 10
PROBES = {"consumer_probe_interval": timedelta(milliseconds=50)}
BREAKER = 5


def made(make_service: Make, *, events: int = EVENTS, **settings: Any) -> tuple[Service, Service]:
    """Return a shop whose events are published, and the service that is to handle them."""
    shop, stock = make_service("shop"), make_service("stock", **PROBES | settings)
    shop.app.declare("orders.placed", payload=int)
    make_topics(shop, stock)
    with shop.transaction() as session:
        for number in range(events):
            event = Event(type="orders.placed", key=f"k{number % KEYS}", payload=number)
            shop.app.outbox.add(session, event)
    drain(shop.relay())
    return shop, stock


class Release:
    """A handler, with a defect until it is repaired."""

    def __init__(self, stock: Service, *, retry: RetryPolicy = QUICK, **options: Any) -> None:
        self.is_broken = True
        self.calls: Counter[int] = Counter()
        self.applied: list[tuple[str | None, int]] = []
        write = effect("reserved")

        @stock.app.consumer("stock").handles("orders.placed", retry=retry, **options)
        def reserve(session: Session, event: Event) -> None:
            self.calls[event.payload] += 1
            if self.is_broken:
                self._add_up(event)
            write(session, event)

    @staticmethod
    def _add_up(event: Event) -> None:
        raise TypeError(f"unsupported operand for {event.payload}")


def attempts(stock: Service) -> int:
    return int(stock.rows("SELECT coalesce(sum(attempts), 0) FROM shield_inbox")[0][0])


def pauses(stock: Service) -> list[tuple[Any, ...]]:
    return stock.rows("SELECT event_type, tx_kind, paused_by FROM shield_pause")


def pass_while(stock: Service, *consumers: Consumer, until: Callable[[], bool]) -> None:
    """Make passes until a condition holds."""
    ends = time.monotonic() + 60
    while not until():
        assert time.monotonic() < ends, (pauses(stock), stock.inbox(), attempts(stock))
        for consumer in consumers:
            consumer.run_once()


def order_of(stock: Service) -> dict[str, list[str]]:
    """Return the event ids of each key, in the order of their effects."""
    found: dict[str, list[str]] = {}
    for key, event_id in stock.rows("SELECT key, event_id FROM effects ORDER BY ctid"):
        found.setdefault(key, []).append(event_id)
    return found


def expect_every_effect_once_in_order(shop: Service, stock: Service) -> None:
    written: dict[str, list[str]] = {}
    for key, event_id in shop.rows("SELECT key, event_id FROM shield_outbox ORDER BY seq"):
        written.setdefault(key, []).append(str(event_id))
    assert order_of(stock) == written
    assert stock.inbox() == {"PROCESSED": EVENTS}


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_a_defect_cancels_nothing_and_the_next_release_works(
    make_service: Make, alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop, stock = made(make_service)
    release = Release(stock, alone=alone)
    consumer = stock.app.build_consumer("stock")

    pass_while(stock, consumer, until=lambda: bool(pauses(stock)))
    counted = attempts(stock)
    pass_while(stock, consumer, until=lambda: _probes(stock) >= 3)

    assert pauses(stock) == [("orders.placed", "COMMIT", "breaker")]
    # The event that trips is not counted; lanes may be in the middle of others.
    assert counted < BREAKER + 4
    assert attempts(stock) <= counted
    assert stock.outbox() == {}
    tripped = [r for r in caplog.records if fields_of(r).get("action") == "handler_tripped"]
    [alarm] = tripped
    assert alarm.levelno == logging.ERROR
    assert fields_of(alarm)["waiting"] == EVENTS
    assert "test_breaker.py" in str(fields_of(alarm)["raise_site"])

    consumer.close()
    release.is_broken = False
    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: len(stock.effects()) == EVENTS)
    expect_every_effect_once_in_order(shop, stock)
    assert stock.outbox() == {}
    assert pauses(stock) == []


def test_a_payload_type_that_fits_no_event_cancels_nothing(make_service: Make) -> None:
    is_broken = True

    def check(value: int) -> int:
        if is_broken:
            raise ValueError("no such number")
        return value

    shop, stock = made(make_service)
    checked = Annotated[int, AfterValidator(check)]
    stock.app.consumer("stock").handles("orders.placed", payload=checked, retry=QUICK)(
        effect("reserved")
    )
    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: bool(pauses(stock)))
    assert stock.outbox() == {}

    is_broken = False
    pass_while(stock, consumer, until=lambda: len(stock.effects()) == EVENTS)
    expect_every_effect_once_in_order(shop, stock)
    assert stock.outbox() == {}


def _probes(stock: Service) -> int:
    rows = stock.rows("SELECT probes FROM shield_pause")
    return int(rows[0][0]) if rows else 0


def test_two_workers_share_a_pause_and_its_end(make_service: Make) -> None:
    shop, stock = made(make_service)
    release = Release(stock)
    consumers = [stock.app.build_consumer("stock") for _ in range(2)]

    pass_while(stock, *consumers, until=lambda: _probes(stock) >= 2)
    assert sum(release.calls.values()) <= 4 * BREAKER + 8
    assert stock.outbox() == {}
    release.is_broken = False
    pass_while(stock, *consumers, until=lambda: len(stock.effects()) == EVENTS)
    expect_every_effect_once_in_order(shop, stock)


@pytest.mark.plain_handlers
def test_defect_of_one_worker_alone_stops_no_other(
    make_service: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shop, stock = made(make_service, consumer_concurrency=1, consumer_batch_size=2)
    write = effect("reserved")
    other_threads: set[int] = set()

    def pass_of_the_healthy_one() -> None:
        other_threads.add(threading.get_ident())
        healthy.run_once()

    def meanwhile() -> None:
        thread = threading.Thread(target=pass_of_the_healthy_one)
        thread.start()
        thread.join()

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        if threading.get_ident() not in other_threads:
            meanwhile()
            raise TypeError(f"no library for {event.payload}")
        write(session, event)

    sick, healthy = (stock.app.build_consumer("stock") for _ in range(2))
    shared: list[Any] = []

    def is_done() -> bool:
        shared.extend(pauses(stock))
        meanwhile()
        return len(stock.effects()) == EVENTS

    pass_while(stock, sick, until=is_done)
    expect_every_effect_once_in_order(shop, stock)
    assert stock.outbox() == {}
    assert shared == []
    alone = [r for r in caplog.records if fields_of(r).get("action") == "handler_fails_here_alone"]
    assert alone


def test_with_one_attempt_the_event_that_trips_is_not_cancelled(make_service: Make) -> None:
    _, stock = made(make_service)
    Release(stock, retry=RetryPolicy(max_attempts=1))
    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: _probes(stock) >= 2)
    assert stock.outbox() == {"INIT": BREAKER - 1}
    assert stock.inbox() == {
        "MAX_RECONSUMED": BREAKER - 1,
        **_open(stock),
    }
    assert sum(_open(stock).values()) == EVENTS - BREAKER + 1


def _open(stock: Service) -> dict[str, int]:
    return {s: n for s, n in stock.inbox().items() if s in {"INIT", "PROCESSING"}}


@pytest.mark.plain_handlers
def test_last_attempt_during_a_trip_elsewhere_does_not_count(
    make_service: Make,
) -> None:
    """The second worker has read the pauses before the first one trips."""
    _, stock = made(make_service, events=1)
    pauses_of = stock.app.stores.pauses()

    @stock.app.consumer("stock").handles("orders.placed", retry=RetryPolicy(max_attempts=1))
    def reserve(session: Session, event: Event) -> None:
        [key] = stock.app.handled_by("stock")
        pauses_of.trip("stock", key, reason="TypeError", first_probe=timedelta(hours=1))
        raise TypeError

    consumer = stock.app.build_consumer("stock")
    for _ in range(5):
        consumer.run_once()
    assert stock.outbox() == {}
    assert stock.rows("SELECT attempts, status FROM shield_inbox") == [(0, "PROCESSING")]


@pytest.mark.plain_handlers
def test_refusals_and_failures_of_one_event_trip_nothing(make_service: Make) -> None:
    _, stock = made(make_service)
    patient = RetryPolicy(max_attempts=30, first=timedelta(0), longest=timedelta(0), jitter=0)

    @stock.app.consumer("stock").handles("orders.placed", retry=patient)
    def reserve(session: Session, event: Event) -> None:
        if event.payload == 7:
            raise TypeError
        raise Refused("sold out")

    drain(stock.app.build_consumer("stock"))
    assert pauses(stock) == []
    assert stock.inbox() == {"MAX_RECONSUMED": EVENTS}


@pytest.mark.plain_handlers
def test_a_probe_that_is_refused_ends_the_pause(make_service: Make) -> None:
    _, stock = made(make_service)
    broken = [True]

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        if broken:
            raise TypeError
        raise Refused("sold out")

    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: _probes(stock) >= 1)
    broken.clear()
    pass_while(stock, consumer, until=lambda: stock.inbox() == {"MAX_RECONSUMED": EVENTS})
    assert pauses(stock) == []


class OutOfStock(Exception):
    """A failure that the business knows."""


KNOWN = replace(QUICK, expected=(OutOfStock,))


@pytest.mark.plain_handlers
@pytest.mark.parametrize("alone", [True, False])
def test_expected_errors_use_up_their_attempts_and_pause_nothing(
    make_service: Make, alone: bool
) -> None:
    _, stock = made(make_service, events=3 * BREAKER)
    numbers: list[int] = []

    @stock.app.consumer("stock").handles("orders.placed", retry=KNOWN, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        numbers.append(event.attempt)
        raise OutOfStock("none left")

    consumer = stock.app.build_consumer("stock")
    while "MAX_RECONSUMED" not in stock.inbox() or len(stock.inbox()) > 1:
        consumer.run_once()
        assert pauses(stock) == []
    assert stock.inbox() == {"MAX_RECONSUMED": 3 * BREAKER}
    assert stock.rows("SELECT DISTINCT attempts FROM shield_inbox") == [(KNOWN.max_attempts,)]
    assert set(numbers) == set(range(1, KNOWN.max_attempts + 1))
    assert len(stock.rows("SELECT 1 FROM shield_outbox WHERE tx_kind = 'ROLLBACK'")) == 3 * BREAKER


@pytest.mark.plain_handlers
def test_a_probe_with_an_expected_error_ends_the_pause(make_service: Make) -> None:
    _, stock = made(make_service, events=2 * BREAKER)
    error: list[Exception] = [TypeError("a defect")]

    @stock.app.consumer("stock").handles("orders.placed", retry=KNOWN)
    def reserve(session: Session, event: Event) -> None:
        raise error[0]

    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: bool(pauses(stock)))
    error[0] = OutOfStock("none left")
    pass_while(stock, consumer, until=lambda: stock.inbox() == {"MAX_RECONSUMED": 2 * BREAKER})
    assert pauses(stock) == []


@pytest.mark.plain_handlers
def test_probe_calls_the_handler_after_a_last_attempt_that_died(make_service: Make) -> None:
    """The process died in the last attempt, because the repaired release replaced it."""
    _, stock = made(make_service, events=BREAKER)
    release = Release(stock)
    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: bool(pauses(stock)))
    stock.execute(
        f"UPDATE shield_inbox SET attempts = {QUICK.max_attempts}, status = 'PROCESSING',"
        " lease_until = due_at WHERE settled_at IS NULL"
    )
    release.is_broken = False
    pass_while(stock, consumer, until=lambda: not pauses(stock))
    assert stock.effects()


@pytest.mark.plain_handlers
def test_errors_together_are_expected_if_each_is_declared(make_service: Make) -> None:
    _, stock = made(make_service, events=2 * BREAKER)

    @stock.app.consumer("stock").handles("orders.placed", retry=KNOWN)
    def reserve(session: Session, event: Event) -> None:
        raise ExceptionGroup("both", [OutOfStock("none left"), Refused("no credit")])

    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: stock.inbox() == {"MAX_RECONSUMED": 2 * BREAKER})
    assert pauses(stock) == []


@pytest.mark.plain_handlers
def test_probe_with_another_error_stays_paused_with_its_reason(make_service: Make) -> None:
    _, stock = made(make_service)
    errors: list[Exception] = [TypeError("first")]

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        raise errors[0]

    def reason() -> str:
        rows = stock.rows("SELECT reason FROM shield_pause")
        return str(rows[0][0]) if rows else ""

    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: "first" in reason())
    errors[0] = LookupError("second")
    pass_while(stock, consumer, until=lambda: "LookupError: second" in reason())
    assert "test_breaker.py" in reason()
    assert stock.outbox() == {}


@pytest.mark.plain_handlers
def test_events_that_always_fail_keep_no_handler_paused(make_service: Make) -> None:
    """The oldest events fail for a reason of their own: probes take turns with other keys."""
    _, stock = made(make_service, events=30)
    write = effect("reserved")

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=True)
    def reserve(session: Session, event: Event) -> None:
        if event.payload < BREAKER:
            raise TypeError
        write(session, event)

    stock.app.stores.pauses().trip(
        "stock",
        next(iter(stock.app.handled_by("stock"))),
        reason="TypeError",
        first_probe=timedelta(milliseconds=50),
    )
    consumer = stock.app.build_consumer("stock")
    # The other keys have half of the events.
    pass_while(stock, consumer, until=lambda: len(stock.effects()) == 15)
    assert not set(stock.effects()) & {f"k{number}" for number in range(BREAKER)}


@pytest.mark.plain_handlers
def test_an_operators_pause_has_no_probes_and_ends_with_resume(make_service: Make) -> None:
    shop, stock = made(make_service)
    release = Release(stock)
    release.is_broken = False
    admin = stock.app.stores.pause_admin()
    admin.pause("stock", who="ann", reason="stocktaking")
    consumer = stock.app.build_consumer("stock")
    for _ in range(20):
        consumer.run_once()
    assert stock.inbox() == {"INIT": EVENTS}
    assert not release.calls
    assert admin.resume("stock", who="bob", reason="counted") == 1
    pass_while(stock, consumer, until=lambda: len(stock.effects()) == EVENTS)
    expect_every_effect_once_in_order(shop, stock)
    entries = stock.rows("SELECT who, action, subject FROM shield_audit ORDER BY id")
    assert entries == [("ann", "pause", "stock/*"), ("bob", "resume", "stock/*")]


@pytest.mark.plain_handlers
def test_an_operators_pause_stops_the_probes_of_the_breaker(make_service: Make) -> None:
    _, stock = made(make_service)
    Release(stock)
    consumer = stock.app.build_consumer("stock")
    pass_while(stock, consumer, until=lambda: bool(pauses(stock)))
    stock.app.stores.pause_admin().pause("stock", "orders.placed", who="ann", reason="a look")
    # The consumer reads the pauses once a second.
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        consumer.run_once()
    probes = _breaker_probes(stock)
    for _ in range(30):
        consumer.run_once()
    assert _breaker_probes(stock) == probes
    assert sorted(pauses(stock)) == [
        ("orders.placed", "*", "ann"),
        ("orders.placed", "COMMIT", "breaker"),
    ]


def _breaker_probes(stock: Service) -> int:
    rows = stock.rows("SELECT probes FROM shield_pause WHERE paused_by = 'breaker'")
    return int(rows[0][0])


@pytest.mark.plain_handlers
def test_paused_type_fills_its_partition_and_drains_later(make_service: Make) -> None:
    shop, stock = made(make_service, consumer_pending_limit=5)
    release = Release(stock)
    release.is_broken = False
    admin = stock.app.stores.pause_admin()
    admin.pause("stock", "orders.placed", who="ann", reason="a look")
    consumer = stock.app.build_consumer("stock")
    for _ in range(10):
        result = consumer.run_once()
    assert result.paused > 0
    admin.resume("stock", "orders.placed", who="ann", reason="seen")
    pass_while(stock, consumer, until=lambda: len(stock.effects()) == EVENTS)
    expect_every_effect_once_in_order(shop, stock)


@pytest.mark.plain_handlers
def test_a_length_of_zero_pauses_nothing(make_service: Make) -> None:
    _, stock = made(make_service, consumer_breaker=0)
    Release(stock)
    drain(stock.app.build_consumer("stock"))
    assert pauses(stock) == []
    assert stock.inbox() == {"MAX_RECONSUMED": EVENTS}


@pytest.mark.plain_handlers
def test_a_compensation_with_a_defect_is_paused_too(make_service: Make) -> None:
    shop, stock = made(make_service, events=20)
    shop.app.consumer("shop")
    broken = [True]
    undo = effect("cancelled")

    @stock.app.consumer("stock").handles("orders.placed")
    def reserve(session: Session, event: Event) -> None:
        raise Refused("sold out")

    @shop.app.consumer("shop").compensates("orders.placed", retry=QUICK)
    def cancel(session: Session, event: Event) -> None:
        if broken:
            raise TypeError
        undo(session, event)

    make_topics(shop, stock)
    drain(stock.app.build_consumer("stock"))
    drain(stock.relay())
    consumer = shop.app.build_consumer("shop")
    pass_while(shop, consumer, until=lambda: bool(pauses(shop)))
    assert pauses(shop) == [("orders.placed", "ROLLBACK", "breaker")]
    for _ in range(20):
        consumer.run_once()
    assert "DEAD" not in shop.inbox()
    broken.clear()
    shop.execute("UPDATE shield_pause SET probe_at = now()")
    pass_while(shop, consumer, until=lambda: len(shop.effects("cancelled")) == 20)
    assert shop.inbox() == {"PROCESSED": 20}
