"""Hooks around sends and attempts: when they are called, with what, and that their errors stay
inside.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.consumer.consumer import Consumer
from shieldtx.errors import LeaseLost
from shieldtx.hooks.contexts import ConsumeContext, SendContext
from shieldtx.ports.broker import DeliveryOutcome
from shieldtx.ports.inbox import AttemptOutcome
from shieldtx.relay.relay import Relay
from tests.conftest import Eventually
from tests.support.log_records import logged
from tests.support.service import (
    QUICK,
    Service,
    Wire,
    answer,
    drain,
    effect,
    forget_groups,
    make_topics,
)

Make = Callable[..., Service]


class Pair:
    """Orders, which writes and compensates, and stock, which handles; both record the calls of
    hooks.
    """

    def __init__(self, make: Make, **stock: Any) -> None:
        self.orders, self.stock = make("orders"), make("stock", **stock)
        self.orders.app.declare("orders.placed")
        compensates = self.orders.app.consumer("orders").compensates("orders.placed", retry=QUICK)
        compensates(effect("cancelled"))
        self.handle: Callable[[Session, Event], None] = effect("reserved")
        self.stock.app.consumer("stock").handles("orders.placed", retry=QUICK)(
            lambda session, event: self.handle(session, event)  # noqa: PLW0108  replaced by tests
        )
        self.sends: list[tuple[str, SendContext]] = []
        self.attempts: list[tuple[str, ConsumeContext]] = []

    def listen(self) -> None:
        for service in (self.orders, self.stock):
            hooks = service.app.hooks
            hooks.before_send(lambda c: self.sends.append(("before", c)))
            hooks.after_send(lambda c: self.sends.append(("after", c)))
            hooks.on_send_error(lambda c: self.sends.append(("error", c)))
            hooks.before_consume(lambda c: self.attempts.append(("before", c)))
            hooks.after_consume(lambda c: self.attempts.append(("after", c)))
            hooks.on_consume_error(lambda c: self.attempts.append(("error", c)))

    def start(self) -> list[Relay | Consumer]:
        make_topics(self.orders, self.stock)
        return [
            *(service.relay() for service in (self.orders, self.stock)),
            self.stock.app.build_consumer("stock"),
            self.orders.app.build_consumer("orders"),
        ]

    def place(self, *keys: str | None) -> list[Event]:
        events = [Event(type="orders.placed", key=key, payload={"key": key}) for key in keys]
        with self.orders.transaction() as session:
            self.orders.app.outbox.add_all(session, events)
        return events

    def summary_of(self, calls: list[tuple[str, Any]]) -> list[tuple[Any, ...]]:
        """Return hook, key, attempt and outcome of each call."""
        return [
            (name, c.key, c.attempt, "" if c.outcome is None else c.outcome.name)
            for name, c in calls
        ]


@pytest.fixture
def pair(make_service: Make) -> Pair:
    return Pair(make_service)


def test_hooks_are_called_before_and_after_each_send_and_attempt(pair: Pair) -> None:
    pair.listen()
    workers = pair.start()
    [first, _] = pair.place("a", "b")
    drain(*workers)

    assert pair.summary_of(pair.sends) == [
        ("before", "a", 1, ""),
        ("before", "b", 1, ""),
        ("after", "a", 1, "ACKNOWLEDGED"),
        ("after", "b", 1, "ACKNOWLEDGED"),
    ]
    assert sorted(pair.summary_of(pair.attempts), key=lambda c: (c[0] == "after", c[1])) == [
        ("before", "a", 1, ""),
        ("before", "b", 1, ""),
        ("after", "a", 1, "APPLIED"),
        ("after", "b", 1, "APPLIED"),
    ]
    sent = next(c for name, c in pair.sends if name == "after" and c.key == "a")
    came = next(c for name, c in pair.attempts if name == "after" and c.key == "a")
    assert (sent.event_id, sent.type, sent.source) == (first.id, "orders.placed", "orders")
    assert (came.event_id, came.type, came.source) == (first.id, "orders.placed", "orders")
    assert (sent.partition, sent.offset) == (came.partition, came.offset)
    assert sent.offset is not None
    assert sent.waited >= 0
    assert sent.took is not None
    assert came.took is not None
    assert came.group == "stock"


def test_a_failed_send_is_traced_with_its_reason_and_retry(pair: Pair, wire: Wire) -> None:
    pair.listen()
    relay = pair.start()[0]
    pair.place("a")
    wire.fate = lambda record: answer(DeliveryOutcome.REFUSED, "not yet")
    relay.run_once()
    pair.orders.execute("UPDATE shield_outbox SET due_at = now()")
    wire.fate = lambda record: None
    drain(relay)

    assert pair.summary_of(pair.sends) == [
        ("before", "a", 1, ""),
        ("error", "a", 1, "REFUSED"),
        ("before", "a", 2, ""),
        ("after", "a", 2, "ACKNOWLEDGED"),
    ]
    assert pair.sends[1][1].error == "not yet"


def test_a_failed_attempt_is_traced_with_its_error_and_retry(
    pair: Pair,
) -> None:
    error = ValueError("no such shelf")

    def refuse(session: Session, event: Event) -> None:
        raise error

    pair.handle = refuse
    pair.listen()
    workers = pair.start()
    [placed] = pair.place("a")
    drain(*workers)

    here = [(n, c) for n, c in pair.attempts if c.group == "stock"]
    assert pair.summary_of(here) == [
        ("before", "a", 1, ""),
        ("error", "a", 1, "RETRIED"),
        ("before", "a", 2, ""),
        ("error", "a", 2, "RETRIED"),
        ("before", "a", 3, ""),
        ("error", "a", 3, "REFUSED"),
    ]
    assert all(c.exception is error for name, c in here if name == "error")
    assert here[-1][1].error == "ValueError: no such shelf"
    assert all((c.event_id, c.offset) == (placed.id, here[0][1].offset) for _, c in here)
    assert here[0][1].offset is not None
    back = [(n, c) for n, c in pair.attempts if c.group == "orders"]
    assert pair.summary_of(back) == [("before", "a", 1, ""), ("after", "a", 1, "COMPENSATED")]


def test_hooks_see_the_committed_state(pair: Pair) -> None:
    seen: dict[str, tuple[Any, ...]] = {}
    orders, stock = pair.orders, pair.stock

    def sent(name: str) -> Callable[[SendContext], None]:
        return lambda _: seen.update(
            {name: orders.rows("SELECT status, attempts FROM shield_outbox")[0]}
        )

    def consumed(name: str) -> Callable[[ConsumeContext], None]:
        return lambda _: seen.update(
            {
                name: (
                    *stock.rows("SELECT status, attempts FROM shield_inbox")[0],
                    len(stock.effects()),
                )
            }
        )

    orders.app.hooks.before_send(sent("before send"))
    orders.app.hooks.after_send(sent("after send"))
    stock.app.hooks.before_consume(consumed("before consume"))
    stock.app.hooks.after_consume(consumed("after consume"))
    workers = pair.start()
    pair.place("a")
    drain(*workers)

    assert seen == {
        "before send": ("PROCESSING", 1),
        "after send": ("PROCESSING", 1),
        "before consume": ("PROCESSING", 1, 0),
        "after consume": ("PROCESSED", 1, 1),
    }


def test_a_failure_is_reported_with_the_new_status_of_the_event(pair: Pair) -> None:
    def fail(session: Session, event: Event) -> None:
        raise ValueError("no such shelf")

    pair.handle = fail
    seen = []
    pair.stock.app.hooks.on_consume_error(
        lambda c: seen.append((c.outcome, pair.stock.inbox(), pair.stock.outbox()))
    )
    workers = pair.start()
    pair.place("a")
    drain(*workers)
    assert seen == [
        ("RETRIED", {"PROCESSING": 1}, {}),
        ("RETRIED", {"PROCESSING": 1}, {}),
        ("REFUSED", {"MAX_RECONSUMED": 1}, {"INIT": 1}),
    ]


def test_event_failed_by_process_deaths_has_no_handler_error(
    pair: Pair,
) -> None:
    def fail(session: Session, event: Event) -> None:
        raise ValueError("no such shelf")

    pair.handle = fail
    pair.listen()
    workers = pair.start()
    pair.place("a")
    pair.stock.app.hooks.on_consume_error(
        # As if the next two processes had died during the attempt.
        lambda c: pair.stock.execute("UPDATE shield_inbox SET attempts = 3")
    )
    drain(*workers)
    [(_, failed), (name, ended)] = [
        (n, c) for n, c in pair.attempts if c.group == "stock" and n != "before"
    ]
    assert failed.outcome is AttemptOutcome.RETRIED
    assert (name, ended.outcome, ended.attempt) == ("error", AttemptOutcome.REFUSED, 3)
    assert (ended.error, ended.exception, ended.took) == (
        *("the last attempt ended with its process", None, None),
    )
    assert len([1 for n, c in pair.attempts if c.group == "stock" and n == "before"]) == 1


def test_an_interrupted_attempt_has_no_duration_in_later_traces(
    pair: Pair, eventually: Eventually
) -> None:
    exits, reserve = iter([SystemExit(4), SystemExit(4)]), pair.handle

    def exit_twice(session: Session, event: Event) -> None:
        if status := next(exits, None):
            raise status
        reserve(session, event)

    pair.handle = exit_twice
    pair.listen()
    relay, _, consumer, _ = pair.start()
    pair.place("a")
    drain(relay)
    for _ in range(2):
        pair.stock.execute("UPDATE shield_inbox SET lease_until = now()")
        with pytest.raises(SystemExit):
            consumer.run_once()
    pair.place("b")
    drain(relay)
    consumer.run_once()
    # As if the next process had died during the attempt.
    pair.stock.execute(
        "UPDATE shield_inbox SET attempts = 3, lease_until = now() WHERE settled_at IS NULL"
    )
    # The last pass applied all of its events: within the interval, a poll is left out.
    eventually(lambda: consumer.run_once().outcomes, "the event is given up")
    ended = {c.key: c for name, c in pair.attempts if name != "before"}
    assert ended["b"].took is not None
    assert (ended["a"].outcome, ended["a"].took) == (AttemptOutcome.REFUSED, None)


def test_attempt_taken_over_by_another_worker_is_lost(make_service: Make) -> None:
    pair = Pair(make_service)
    pair.stock.app.consumer("alone").handles("orders.placed", alone=True)(effect("reserved"))
    pair.listen()
    # As after another worker whose attempt began while this attempt was about to begin.
    pair.stock.app.hooks.before_consume(
        lambda c: pair.stock.execute("UPDATE shield_inbox SET lease_token = gen_random_uuid()")
    )
    make_topics(pair.orders, pair.stock)
    worker = pair.stock.app.build_consumer("alone")
    pair.place("a")
    drain(pair.orders.relay(), worker)
    assert pair.summary_of(pair.attempts) == [("before", "a", 1, ""), ("error", "a", 1, "LOST")]
    assert isinstance(pair.attempts[-1][1].exception, LeaseLost)
    assert pair.stock.effects() == []


def test_hook_before_a_handler_runs_in_the_handlers_thread(pair: Pair) -> None:
    trail: list[tuple[str, str | None, int]] = []
    pair.stock.app.hooks.before_consume(
        lambda c: trail.append(("hook", c.key, threading.get_ident()))
    )
    pair.handle = lambda session, event: trail.append(("handler", event.key, threading.get_ident()))
    workers = pair.start()
    pair.place("a", "b", "c")
    drain(*workers)
    assert [name for name, _, _ in trail] == ["hook", "handler"] * 3
    assert [trail[n][1:] for n in (0, 2, 4)] == [trail[n][1:] for n in (1, 3, 5)]


def test_each_event_of_a_batch_with_a_failing_event_ends_once(pair: Pair) -> None:
    def refuse_c(session: Session, event: Event) -> None:
        if event.key == "c":
            raise ValueError("not c")
        effect("reserved")(session, event)

    pair.handle = refuse_c
    pair.listen()
    workers = pair.start()
    pair.place("a", "b", "c", "d")
    drain(*workers)
    ended = [
        (name, c.key, c.outcome or "")
        for name, c in pair.attempts
        if name != "before" and c.group == "stock"
    ]
    assert sorted(ended) == [
        ("after", "a", "APPLIED"),
        ("after", "b", "APPLIED"),
        ("after", "d", "APPLIED"),
        ("error", "c", "REFUSED"),
        ("error", "c", "RETRIED"),
        ("error", "c", "RETRIED"),
    ]
    assert all(c.took is not None for name, c in pair.attempts if name != "before")


def test_hooks_are_called_for_each_event_of_a_list_handler(make_service: Make) -> None:
    pair = Pair(make_service)
    forget_groups(pair.stock.app, "stock")
    calls: list[int] = []

    @pair.stock.app.consumer("stock").handles_many("orders.placed", retry=QUICK)
    def reserve(session: Session, events: list[Event]) -> None:
        calls.append(len(pair.attempts))
        for event in events:
            effect("reserved")(session, event)

    pair.listen()
    workers = pair.start()
    pair.place("a", "b", "c")
    drain(*workers)
    assert calls == [3]
    assert sorted(pair.summary_of(pair.attempts)) == sorted(
        [("before", k, 1, "") for k in "abc"] + [("after", k, 1, "APPLIED") for k in "abc"]
    )


def test_hooks_that_raise_affect_no_events_order_or_later_hooks(
    pair: Pair, own_log: pytest.LogCaptureFixture
) -> None:
    def refuse_odd_ones(session: Session, event: Event) -> None:
        if event.payload["key"] == "odd":
            raise ValueError("odd")
        effect("reserved")(session, event)

    def broken(context: object) -> None:
        raise RuntimeError("this hook is broken")

    pair.handle = refuse_odd_ones
    for service in (pair.orders, pair.stock):
        h = service.app.hooks
        for register in (
            *(h.before_send, h.after_send, h.on_send_error),
            *(h.before_consume, h.after_consume, h.on_consume_error),
        ):
            register(broken)
    pair.listen()
    workers = pair.start()
    keys = [f"k{n % 5}" for n in range(60)]
    with own_log.at_level(logging.ERROR, "shieldtx.hooks.hooks"):
        pair.place(*keys, "odd")
        drain(*workers)

    rows = pair.stock.rows("SELECT event_id, key FROM effects ORDER BY ctid")
    for key in set(keys):
        in_order = [str(i) for i, k in rows if k == key]
        assert len(in_order) == 12
        assert in_order == sorted(in_order), "ids grow in the order of writing"
    assert pair.orders.outbox() == {"PROCESSED": 61}
    assert pair.stock.inbox() == {"PROCESSED": 60, "MAX_RECONSUMED": 1}
    assert pair.orders.effects("cancelled") == ["odd"]
    assert len([1 for name, _ in pair.sends if name == "after"]) == 62
    assert len([1 for name, c in pair.attempts if name == "after"]) == 61
    # Two applications with one hook each: each logs one line a minute.
    failed = logged(own_log.records, "hook_failed")
    assert ["broken" in str(each["hook"]) for each in failed] == [True, True]


def test_without_hooks_nothing_is_asked_of_the_publisher(pair: Pair, wire: Wire) -> None:
    asked: list[bool] = []
    publisher = type(wire.publisher())
    real = publisher.publish

    def spy(self: Any, records: Any, *, timeout: float, with_offsets: bool = False) -> Any:
        asked.append(with_offsets)
        return real(self, records, timeout=timeout, with_offsets=with_offsets)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publisher, "publish", spy)
        workers = pair.start()
        pair.place("a")
        drain(*workers)
        pair.listen()
        pair.place("a")
        drain(*workers)
    assert asked == [False, True]
