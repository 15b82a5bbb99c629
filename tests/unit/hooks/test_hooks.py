"""Hooks by themselves: their order, their contexts, and the handling of their errors."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

import pytest

from shieldtx.domain.events import Envelope, new_event_id
from shieldtx.domain.log_throttle import LOG_EVERY
from shieldtx.errors import ConfigurationError
from shieldtx.hooks.attempt_timer import AttemptTimer
from shieldtx.hooks.contexts import ConsumeContext, SendContext
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.relay import ClaimedEvent
from tests.support.log_records import logged

ACKNOWLEDGED = Delivery(outcome=DeliveryOutcome.ACKNOWLEDGED, partition=3, offset=17)


def envelope(key: str = "k") -> Envelope:
    return Envelope(
        id=new_event_id(),
        type="orders.placed",
        source="orders",
        topic="orders",
        payload='{"card": "SECRET"}',
        time=datetime.now(UTC),
        key=key,
    )


def claimed(*keys: str) -> list[ClaimedEvent]:
    return [ClaimedEvent(envelope=envelope(key), attempts=1, unconfirmed=False) for key in keys]


def attempt(key: str = "k") -> Attempt:
    return Attempt(
        envelope=envelope(key), group="stock", number=1, token=uuid4(), partition=3, offset=17
    )


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_registering_returns_the_hook_so_that_it_can_decorate() -> None:
    hooks = Hooks()

    @hooks.after_send
    def count(context: SendContext) -> None: ...

    @hooks.on_consume_error
    def report(context: ConsumeContext) -> None: ...

    assert (count.__name__, report.__name__) == ("count", "report")
    assert hooks.has_send_hooks
    assert hooks.watch_consuming


def test_hook_that_cannot_be_called_is_refused_at_once() -> None:
    async def later(context: SendContext) -> None: ...

    for wrong in (later, "print", None):
        with pytest.raises(ConfigurationError, match="Give a"):
            Hooks().before_send(wrong)  # type: ignore[type-var]


def test_attempts_are_not_watched_without_hooks() -> None:
    hooks = Hooks()
    assert not hooks.has_send_hooks
    assert not hooks.watch_consuming
    hooks.before_consume(print)
    assert not hooks.has_send_hooks
    assert hooks.watch_consuming


def test_hooks_are_called_in_registration_order_per_event() -> None:
    hooks, calls = Hooks(), []
    hooks.after_send(lambda c: calls.append(("first", c.key)))
    hooks.after_send(lambda c: calls.append(("second", c.key)))
    hooks.sent(claimed("a", "b"), [ACKNOWLEDGED] * 2, waited=0.5, took=0.25)
    assert calls == [("first", "a"), ("second", "a"), ("first", "b"), ("second", "b")]


def test_outcome_selects_the_after_or_the_error_hook() -> None:
    hooks, calls = Hooks(), []
    hooks.after_send(lambda c: calls.append(("after", c.key, c.offset)))
    hooks.on_send_error(lambda c: calls.append(("error", c.key, c.error)))
    refused = Delivery(outcome=DeliveryOutcome.REFUSED, reason="no such topic")
    hooks.sent(claimed("a", "b"), [refused, ACKNOWLEDGED], waited=0.5, took=0.25)
    assert calls == [("error", "a", "no such topic"), ("after", "b", 17)]


def test_context_is_immutable_and_holds_no_payload() -> None:
    hooks, seen = Hooks(), []
    hooks.before_consume(seen.append)
    hooks.consuming([attempt()])
    [context] = seen
    with pytest.raises(FrozenInstanceError):
        context.key = "another"
    assert "SECRET" not in repr(context)
    assert "payload" not in {f.name for f in (*fields(SendContext), *fields(ConsumeContext))}


def test_error_is_logged_once_a_minute_for_each_hook_and_kind(
    own_log: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    hooks, errors = Hooks(clock=clock), [ValueError("one"), ValueError("two"), KeyError("three")]
    pending = list(errors)

    def broken(context: SendContext) -> None:
        raise pending.pop(0)

    hooks.before_send(broken)
    hooks.sending(claimed("a", "b", "c"), waited=0)
    assert [r.exc_info[1] for r in own_log.records if r.exc_info] == [errors[0], errors[2]]
    assert all(r.levelno == logging.ERROR for r in own_log.records)

    pending += [ValueError("four")]
    clock.now += LOG_EVERY
    hooks.sending(claimed("a"), waited=0)
    assert len(own_log.records) == 3


def test_hook_is_named_without_its_bound_values(own_log: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()

    def report(token: str, context: SendContext) -> None:
        raise ValueError(context.key)

    hooks.before_send(partial(report, "s3cr3t"))
    hooks.sending(claimed("a"), waited=0)
    [failed] = logged(own_log.records, "hook_failed")
    assert str(failed["hook"]).endswith("report")
    assert "s3cr3t" not in str(failed)


def test_failures_of_a_hook_between_two_lines_are_counted(
    own_log: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    hooks = Hooks(clock=clock)

    def broken(context: SendContext) -> None:
        raise ValueError(context.key)

    hooks.before_send(broken)
    hooks.sending(claimed("a", "b", "c"), waited=0)
    clock.now += LOG_EVERY
    hooks.sending(claimed("a"), waited=0)
    assert [each["count"] for each in logged(own_log.records, "hook_failed")] == [1, 4]


def test_error_of_a_hook_affects_no_later_hook_or_event() -> None:
    hooks, calls = Hooks(), []

    def broken(context: SendContext) -> None:
        raise ValueError(context.key)

    hooks.before_send(broken)
    hooks.before_send(lambda c: calls.append(c.key))
    hooks.sending(claimed("a", "b"), waited=0)
    assert calls == ["a", "b"]


def test_watch_takes_the_time_of_each_attempt() -> None:
    clock, took = Clock(), []
    hooks = Hooks()
    hooks.after_consume(lambda c: took.append(c.took))
    hooks.on_consume_error(lambda c: took.append((c.took, c.error, c.exception)))
    watch = AttemptTimer(hooks, clock=clock)
    first, second, third = attempt("a"), attempt("b"), attempt("c")
    watch.begin([first])
    clock.now += 2
    watch.begin([second])
    clock.now += 1
    watch.end([first, second], AttemptOutcome.APPLIED)
    watch.fail(third, AttemptOutcome.REFUSED, "its process died")
    assert took == [3, 1, (None, "its process died", None)]


def test_attempt_that_begins_again_is_timed_from_there() -> None:
    clock, took = Clock(), []
    hooks = Hooks()
    hooks.after_consume(lambda c: took.append(c.took))
    watch = AttemptTimer(hooks, clock=clock)
    again = attempt()
    watch.begin([again])
    clock.now += 5
    watch.begin([again])
    clock.now += 1
    watch.end([again], AttemptOutcome.APPLIED)
    assert took == [1]
