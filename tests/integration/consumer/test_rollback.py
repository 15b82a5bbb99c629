"""Rollbacks: compensation, chains of services, tombstones, authority."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, TxKind
from shieldtx.brokers import decoding
from shieldtx.consumer.consumer import Consumer
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import AttemptOutcome, IncomingEvent
from shieldtx.relay.relay import Relay
from tests.support.handler_styles import STYLES
from tests.support.lanes import process
from tests.support.reasons import without_site
from tests.support.service import (
    QUICK,
    Service,
    Wire,
    as_received,
    drain,
    effect,
    forget_groups,
    make_topics,
)

HANDLER_STYLES = STYLES
Make = Callable[..., Service]


class Chain:
    """Services in a row: each handles the event of the service before it, and writes its own."""

    def __init__(self, make: Make, names: list[str]) -> None:
        self.services = {name: make(name) for name in names}
        self.relays: list[Relay] = []
        self.consumers: dict[str, Consumer] = {}

    def start(self) -> None:
        make_topics(*self.services.values())
        self.relays = [service.relay() for service in self.services.values()]
        self.consumers = {n: s.app.build_consumer(n) for n, s in self.services.items()}

    def drain(self) -> None:
        drain(*self.relays, *self.consumers.values())

    def __getitem__(self, name: str) -> Service:
        return self.services[name]


def refuse(session: Session, event: Event) -> None:
    effect("tried")(session, event)
    raise Refused("not today")


@pytest.fixture
def pair(make_service: Make) -> Chain:
    """orders writes and compensates, stock refuses."""
    chain = Chain(make_service, ["orders", "stock"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed", retry=QUICK)(
        effect("cancelled")
    )
    chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
    chain.start()
    return chain


def place(service: Service, *keys: str, **more: Any) -> list[Event]:
    events = [Event(type="orders.placed", key=key, payload={"key": key}, **more) for key in keys]
    with service.transaction() as session:
        service.app.outbox.add_all(session, events)
    return events


def test_a_refused_event_is_compensated_by_its_upstream_once(pair: Chain) -> None:
    place(pair["orders"], "a", "b")
    pair.drain()
    assert sorted(pair["orders"].effects("cancelled")) == ["a", "b"]
    assert pair["stock"].effects() == []
    assert pair["orders"].inbox() == {"PROCESSED": 2}


def test_compensation_receives_the_original_from_the_outbox(pair: Chain, wire: Wire) -> None:
    seen: list[Event] = []
    orders = pair["orders"].app
    forget_groups(orders, "orders")
    orders.consumer("orders").compensates("orders.placed")(
        lambda session, event: seen.append(event)
    )
    pair.consumers["orders"] = orders.build_consumer("orders")
    [event] = place(pair["orders"], "a", headers={"shop": "7"})
    pair.drain()
    [original] = seen
    assert (original.id, original.payload, original.headers) == (
        event.id,
        {"key": "a"},
        {"shop": "7"},
    )
    # The body of the rollback has other content, of which the handler gets the reason.
    assert original.reason == "Refused: not today"
    [rollback] = [r for r in wire.published if r.topic == "orders.placed.rollback"]
    assert b"not today" in rollback.value


def test_a_rollback_that_comes_again_compensates_nothing_more(pair: Chain, wire: Wire) -> None:
    place(pair["orders"], "a")
    pair.drain()
    wire.publisher().publish(list(wire.published), timeout=5)
    pair.drain()
    assert pair["orders"].effects("cancelled") == ["a"]


def test_each_of_two_services_of_one_type_undoes_its_own_events(
    make_service: Make,
) -> None:
    chain = Chain(make_service, ["eu", "us", "stock"])
    for name in ("eu", "us"):
        chain[name].app.declare("orders.placed")
        chain[name].app.consumer(name).compensates("orders.placed", retry=QUICK)(
            effect("cancelled")
        )
    chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
    chain.start()
    place(chain["eu"], "a")
    place(chain["us"], "b")
    chain.drain()
    assert (chain["eu"].effects("cancelled"), chain["us"].effects("cancelled")) == (["a"], ["b"])
    assert [chain[name].inbox() for name in ("eu", "us")] == [{"PROCESSED": 2}] * 2


def test_refusals_by_two_services_lead_to_one_compensation(
    make_service: Make,
) -> None:
    chain = Chain(make_service, ["orders", "stock", "billing"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    for name in ("stock", "billing"):
        chain[name].app.consumer(name).handles("orders.placed", retry=QUICK)(refuse)
    chain.start()
    place(chain["orders"], "a", biz_key="order-a")
    chain.drain()
    assert chain["orders"].effects("cancelled") == ["a"]
    assert chain["orders"].inbox() == {"PROCESSED": 2}
    compensated = "SELECT count(*) FROM shield_inbox WHERE compensated_id IS NOT NULL"
    assert chain["orders"].rows(compensated) == [(1,)]


def test_refusals_by_two_groups_lead_to_one_compensation(
    make_service: Make,
) -> None:
    chain = Chain(make_service, ["orders", "stock"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    for group in ("stock", "freight"):
        chain["stock"].app.consumer(group).handles("orders.placed", retry=QUICK)(refuse)
    chain.start()
    freight = chain["stock"].app.build_consumer("freight")
    place(chain["orders"], "a", biz_key="order-a")
    drain(*chain.relays, *chain.consumers.values(), freight)
    assert chain["orders"].effects("cancelled") == ["a"]
    assert chain["orders"].inbox() == {"PROCESSED": 2}
    assert chain["orders"].rows("SELECT count(*) FROM shield_parked") == [(0,)]


def test_a_group_that_had_applied_an_event_takes_its_effect_back(make_service: Make) -> None:
    chain = Chain(make_service, ["orders", "stock", "billing"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
    billing = chain["billing"].app.consumer("billing")
    billing.handles("orders.placed")(effect("billed"))
    billing.compensates("orders.placed")(effect("credited"))
    chain.start()
    place(chain["orders"], "a")
    chain.drain()
    assert chain["billing"].effects() == ["a", "a"]
    assert chain["billing"].effects("credited") == ["a"]


def test_rollback_before_its_event_leaves_a_tombstone(make_service: Make, wire: Wire) -> None:
    """The event is refused when it arrives."""
    chain = Chain(make_service, ["orders", "stock", "billing"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
    billing = chain["billing"].app.consumer("billing")
    billing.handles("orders.placed")(effect("billed"))
    billing.compensates("orders.placed")(effect("credited"))
    chain.start()
    [event] = place(chain["orders"], "a")
    late = chain.consumers.pop("billing")
    chain.drain()
    # Billing receives the rollback first: the record of the event itself is delayed.
    rollbacks = [r for r in wire.published if r.topic.endswith(".rollback")]
    commits = [r for r in wire.published if r.topic.endswith(".commit")]
    late.close()
    group = chain["billing"].app
    decoded = [_received(group, r) for r in (*rollbacks, *commits)]
    store = late._store
    outcomes = []
    for envelope, arrival in decoded:
        receipt = store.receive("billing", [arrival], [])
        outcomes += [process(late, fresh) for fresh in receipt.fresh]
        assert envelope.id in {event.id, *(e.id for e, _ in decoded)}
    assert outcomes == [AttemptOutcome.MOOT]
    assert chain["billing"].inbox() == {"FENCED": 1, "PROCESSED": 1}
    assert chain["billing"].effects() == []


def test_rollback_waits_for_its_event_that_is_being_retried(
    make_service: Make,
) -> None:
    chain = Chain(make_service, ["orders", "stock", "billing"])
    chain["orders"].app.declare("orders.placed")
    chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)(refuse)
    trouble = [ValueError("not yet")]
    billing = chain["billing"].app.consumer("billing")

    @billing.handles("orders.placed")
    def bill(session: Session, event: Event) -> None:
        if trouble:
            raise trouble[0]
        effect("billed")(session, event)

    billing.compensates("orders.placed")(effect("credited"))
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    chain.start()
    place(chain["orders"], "a")
    chain.drain()
    assert chain["billing"].inbox() == {"PROCESSING": 1, "INIT": 1}
    trouble.clear()
    chain["billing"].execute("UPDATE shield_inbox SET due_at = now()")
    chain.drain()
    assert chain["billing"].effects() == ["a", "a"]
    assert chain["billing"].effects("credited") == ["a"]


def test_a_chain_of_three_is_undone_from_its_end(make_service: Make) -> None:
    chain = Chain(make_service, ["a", "b", "c"])
    order: list[str] = []
    reasons: list[str | None] = []

    def undo(name: str) -> Callable[[Session, Event], None]:
        def handler(session: Session, event: Event) -> None:
            order.append(name)
            reasons.append(event.reason)
            effect(f"undone by {name}")(session, event)

        return handler

    a, b, c = (chain[name].app for name in "abc")
    a.declare("a.done")
    b.declare("b.done")
    a.consumer("a").compensates("a.done")(undo("a"))

    @b.consumer("b").handles("a.done")
    def then_b(session: Session, event: Event) -> None:
        effect("done by b")(session, event)
        b.outbox.add(session, Event(type="b.done", key=event.key))

    b.consumer("b").compensates("b.done")(undo("b"))
    c.consumer("c").handles("b.done", retry=QUICK)(refuse)
    chain.start()
    with chain["a"].transaction() as session:
        a.outbox.add(session, Event(type="a.done", key="k"))
    chain.drain()
    assert order == ["b", "a"]
    [of_b, of_a] = reasons
    assert of_b == "Refused: not today"
    assert of_a is not None
    assert re.fullmatch(r"b\.done \S+ was taken back by c: Refused: not today", of_a)
    assert chain["b"].effects("undone by b") == ["k"]
    assert chain["a"].effects("undone by a") == ["k"]
    assert chain["c"].effects() == []
    for name, events in {"a": 1, "b": 2, "c": 1}.items():
        assert chain[name].outbox() == {"PROCESSED": events}, name


def test_failed_compensation_is_dead_and_can_be_replayed(pair: Chain) -> None:
    orders = pair["orders"].app
    forget_groups(orders, "orders")
    trouble = [RuntimeError("ledger closed")]

    @orders.consumer("orders").compensates("orders.placed", retry=QUICK)
    def cancel(session: Session, event: Event) -> None:
        if trouble:
            raise trouble[0]
        effect("cancelled")(session, event)

    pair.consumers["orders"] = orders.build_consumer("orders")
    place(pair["orders"], "a")
    pair.drain()
    assert pair["orders"].inbox() == {"DEAD": 1}
    [(attempts, reason)] = pair["orders"].rows("SELECT attempts, last_error FROM shield_inbox")
    assert (attempts, without_site(reason)) == (3, "RuntimeError: ledger closed")
    # The rollback gets no rollback.
    assert pair["orders"].rows("SELECT count(*) FROM shield_outbox") == [(1,)]


def test_a_forged_rollback_is_parked_and_compensates_nothing(pair: Chain) -> None:
    stock = pair["stock"].app
    stock.declare("orders.placed")
    with pair["stock"].transaction() as session:
        never_written = Event(type="orders.placed", key="a")
        stock.outbox.add(
            session,
            Event(
                type="orders.placed",
                key="a",
                kind=TxKind.ROLLBACK,
                causation_id=never_written.id,
                causation_source="orders",
            ),
        )
    pair.drain()
    assert pair["orders"].effects() == []
    assert pair["orders"].inbox() == {"DEAD": 1}
    [(reason,)] = pair["orders"].rows("SELECT last_error FROM shield_inbox")
    assert "not in this service's outbox" in reason


def test_an_event_that_succeeds_on_a_retry_is_not_rolled_back(make_service: Make) -> None:
    chain = Chain(make_service, ["orders", "stock"])
    chain["orders"].app.declare("orders.placed")
    chain["orders"].app.consumer("orders").compensates("orders.placed")(effect("cancelled"))
    tries: list[int] = []

    @chain["stock"].app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        tries.append(1)
        if len(tries) < QUICK.max_attempts:
            raise ValueError("not yet")
        effect("reserved")(session, event)

    chain.start()
    place(chain["orders"], "a")
    chain.drain()
    assert chain["stock"].effects("reserved") == ["a"]
    assert chain["orders"].effects("cancelled") == []
    assert chain["stock"].outbox() == {}


def _received(app: Any, record: Any) -> tuple[Envelope, Any]:
    received = as_received(record)
    envelope = decoding.decode(received, app.settings.topic_prefix)
    return envelope, IncomingEvent(envelope=envelope, record=received)
