"""Parked events: unexpected errors that end in an operator's decision, not in a rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused
from shieldtx.errors import IllegalTransition
from shieldtx.store.dead_letter_rows import DeadLetter
from shieldtx.store.refusals import SqlRefusals
from tests.support.service import QUICK, Service, drain, effect, make_topics

Make = Callable[..., Service]
PARK = replace(QUICK, then="park", refuse_on=(PermissionError,))
ALONE = pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])


class Shop:
    """orders writes and compensates; stock parks; billing, the third service, may refuse."""

    def __init__(self, make: Make) -> None:
        self.orders, self.stock, self.billing = map(make, ("orders", "stock", "billing"))
        self.trouble: dict[str | None, Exception] = {}
        """The errors of stock's handler, by key."""
        self.tries = 0

    def start(self, *, alone: bool = False, refuses: bool = False) -> None:
        self.orders.app.declare("orders.placed")
        self.orders.app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
        stock = self.stock.app.consumer("stock")
        stock.handles("orders.placed", retry=PARK, alone=alone)(self._reserve)
        stock.compensates("orders.placed", retry=PARK)(effect("released"))
        services = [self.orders, self.stock]
        if refuses:
            self.billing.app.consumer("billing").handles("orders.placed", retry=QUICK)(_refuse)
            services.append(self.billing)
        make_topics(*services)
        self._relays = [service.relay() for service in services]
        self._consumers = [
            service.app.build_consumer(name) for service in services for name in service.app.groups
        ]

    def _reserve(self, session: Session, event: Event) -> None:
        self.tries += event.key in self.trouble
        effect("reserved")(session, event)
        if event.key in self.trouble:
            raise self.trouble[event.key]

    def place(self, *keys: str) -> None:
        with self.orders.transaction() as session:
            for key in keys:
                self.orders.app.outbox.add(session, Event(type="orders.placed", key=key))

    def drain(self) -> None:
        drain(*self._relays, *self._consumers)

    def close(self) -> None:
        for relay in self._relays:
            relay.close()
        for consumer in self._consumers:
            consumer.close()

    @property
    def parked(self) -> list[DeadLetter]:
        return list(self.stock.app.stores.dead_letters().latest(limit=10))

    @property
    def refusals(self) -> SqlRefusals:
        return self.stock.app.stores.refusals(self.stock.app.outbox, "cancel it")


def _refuse(session: Session, event: Event) -> None:
    raise Refused("no credit")


@pytest.fixture
def shop(make_service: Make) -> Iterator[Shop]:
    made = Shop(make_service)
    yield made
    made.close()


@ALONE
def test_unexpected_error_parks_the_event_and_no_other(shop: Shop, alone: bool, caplog: Any):
    shop.trouble["b"] = TypeError("positional")
    shop.start(alone=alone)
    shop.place("a", "b", "c")
    shop.drain()
    assert sorted(shop.stock.effects()) == ["a", "c"]
    assert shop.stock.inbox() == {"PROCESSED": 2, "DEAD": 1}
    assert shop.stock.outbox() == {}
    assert shop.orders.effects() == []
    [letter] = shop.parked
    assert (letter.envelope.key, letter.attempts) == ("b", QUICK.max_attempts)
    assert letter.reason.startswith("TypeError: positional (raised at ")
    [logged] = [r for r in caplog.records if getattr(r, "action", "") == "event_dead"]
    assert (logged.levelname, logged.exc_info[0]) == ("ERROR", TypeError)


@ALONE
def test_replayed_event_has_all_its_attempts_and_one_effect(shop: Shop, alone: bool) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start(alone=alone)
    shop.place("a")
    shop.drain()
    tries = shop.tries
    shop.stock.app.stores.dead_letters().replay(shop.parked, who="anna")
    shop.drain()
    assert shop.stock.inbox() == {"DEAD": 1}
    assert shop.tries >= tries + QUICK.max_attempts
    shop.trouble.clear()
    [letter] = shop.parked
    shop.stock.app.stores.dead_letters().replay([letter], who="anna")
    shop.drain()
    assert (shop.stock.effects(), shop.parked) == (["a"], [])
    assert shop.stock.inbox() == {"PROCESSED": 1}
    with pytest.raises(IllegalTransition, match="is PROCESSED"):
        shop.stock.app.stores.dead_letters().replay([letter], who="anna")
    assert shop.stock.outbox() == {}


def test_later_events_of_the_key_do_not_wait(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()
    shop.trouble.clear()
    shop.place("a")
    shop.drain()
    assert shop.stock.inbox() == {"DEAD": 1, "PROCESSED": 1}
    shop.stock.app.stores.dead_letters().replay(shop.parked, who="anna")
    shop.drain()
    assert shop.stock.effects() == ["a", "a"]


@pytest.mark.parametrize("error", [Refused("sold out"), PermissionError("not for you")])
def test_refusal_is_taken_back_although_the_handler_parks(shop: Shop, error: Exception) -> None:
    shop.trouble["a"] = error
    shop.start()
    shop.place("a")
    shop.drain()
    assert shop.stock.inbox() == {"MAX_RECONSUMED": 1, "PROCESSED": 1}
    assert shop.stock.rows("SELECT attempts FROM shield_inbox WHERE tx_kind = 'COMMIT'") == [(1,)]
    assert shop.orders.effects("cancelled") == ["a"]


def test_operator_refuses_a_parked_event(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()
    [letter] = shop.parked
    [refusal] = shop.refusals.refuse([letter], who="anna", reason="cancel it")
    assert (refusal.done, refusal.status) == (True, "MAX_RECONSUMED")
    shop.drain()
    assert shop.orders.effects("cancelled") == ["a"]
    [(payload,)] = shop.stock.rows("SELECT payload FROM shield_outbox")
    assert payload == '{"reason": "cancel it"}'
    [(who, action)] = shop.stock.rows("SELECT who, action FROM shield_audit")
    assert (who, action) == ("anna", "refuse")
    [again] = shop.refusals.refuse([letter], who="anna", reason="cancel it")
    assert (again.done, again.status) == (False, "MAX_RECONSUMED")
    assert shop.stock.outbox() == {"PROCESSED": 1}


def test_failed_rollback_event_leaves_the_event_parked(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()

    def fail(session: Session, event: object) -> None:
        raise OSError("the disk is full")

    stores = shop.stock.app.stores.dead_letters()
    refusals = SqlRefusals(stores._engine, stores._tables, add_rollback=fail)
    with pytest.raises(OSError, match="full"):
        refusals.refuse(shop.parked, who="anna", reason="cancel it")
    assert (shop.stock.inbox(), shop.stock.outbox()) == ({"DEAD": 1}, {})
    assert shop.stock.rows("SELECT * FROM shield_audit") == []


def test_rollback_of_another_service_ends_a_parked_event(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start(refuses=True)
    shop.place("a")
    shop.drain()
    # Once, by stock's handler for rollbacks: nothing was reserved, so nothing is released.
    assert shop.stock.inbox() == {"FENCED": 1, "PROCESSED": 1}
    assert shop.stock.effects() == []
    assert shop.orders.effects("cancelled") == ["a"]
    assert shop.parked == []


def test_event_ended_by_a_rollback_cannot_be_replayed(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()
    [letter] = shop.parked
    with shop.stock.transaction() as session:
        outbox = shop.stock.app.outbox
        rollback = outbox.rollback_of(letter.envelope, reason="another group of stock")
        outbox.add_envelope(session, rollback)
    shop.drain()
    assert shop.stock.inbox() == {"FENCED": 1, "PROCESSED": 1}
    with pytest.raises(IllegalTransition, match="is FENCED"):
        shop.stock.app.stores.dead_letters().replay([letter], who="anna")
    [refusal] = shop.refusals.refuse([letter], who="anna", reason="cancel it")
    assert (refusal.done, refusal.status) == (False, "FENCED")
    assert shop.orders.effects("cancelled") == ["a"]


def test_discarded_event_is_not_compensated_by_a_later_rollback(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()
    [letter] = shop.parked
    [discard] = shop.stock.app.stores.discards().discard([letter], who="anna", reason="a test")
    assert discard.done
    [(detail,)] = shop.stock.rows("SELECT detail FROM shield_audit")
    assert "its service orders gets no rollback event and does not compensate" in detail
    shop.drain()
    assert (shop.orders.effects(), shop.stock.outbox()) == ([], {})
    with shop.stock.transaction() as session:
        outbox = shop.stock.app.outbox
        outbox.add_envelope(session, outbox.rollback_of(letter.envelope, reason="late"))
    shop.drain()
    assert shop.stock.inbox() == {"DISCARDED": 1, "PROCESSED": 1}
    assert shop.stock.effects() == []


def test_own_parked_event_is_ended_with_its_compensation(make_service: Make) -> None:
    orders, stock = make_service("orders"), make_service("stock")
    orders.app.declare("orders.placed")
    group = orders.app.consumer("orders")

    @group.handles("orders.placed", retry=PARK)
    def index(session: Session, event: Event) -> None:
        raise TypeError("positional")

    group.compensates("orders.placed")(effect("cancelled"))
    stock.app.consumer("stock").handles("orders.placed", retry=QUICK)(_refuse)
    make_topics(orders, stock)
    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type="orders.placed", key="a"))
    workers = (
        *(orders.relay(), orders.app.build_consumer("orders")),
        *(stock.relay(), stock.app.build_consumer("stock")),
    )
    drain(*workers)
    assert orders.inbox() == {"FENCED": 1, "PROCESSED": 1}
    assert orders.effects("cancelled") == ["a"]
    assert orders.app.stores.dead_letters().latest(limit=10) == []
    for worker in workers:
        worker.close()


def test_parked_event_is_not_purged(shop: Shop) -> None:
    shop.trouble["a"] = TypeError("positional")
    shop.start()
    shop.place("a")
    shop.drain()
    shop.stock.execute("UPDATE shield_inbox SET settled_at = '2020-01-01 00:00:00.000000'")
    while shop.stock.app.build_retention().run_once().removed:
        pass
    assert shop.stock.inbox() == {"DEAD": 1}
    status = shop.stock.app.stores.status().read()
    assert status.inbox.states["DEAD"].rows == 1
