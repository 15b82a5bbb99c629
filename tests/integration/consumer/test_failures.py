"""Which errors end an attempt at once, lead to a retry, or leave the process running."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from sqlalchemy import insert, table
from sqlalchemy.orm import Session

from shieldtx import Event, Refused
from shieldtx.errors import PayloadRefused
from shieldtx.hooks.contexts import ConsumeContext
from tests.support.handler_styles import STYLES
from tests.support.service import QUICK, Service, drain, effect, make_topics

HANDLER_STYLES = STYLES
Make = Callable[..., Service]
ALONE = pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])


@pytest.fixture
def services(make_service: Make) -> tuple[Service, Service]:
    """Orders, which has written three events, and stock, which is to handle them."""
    orders, stock = make_service("orders"), make_service("stock")
    orders.app.declare("orders.placed")
    orders.app.declare("orders.cancelled", payload=dict[str, int])
    stock.app.declare("stock.reserved", payload=dict[str, int])
    make_topics(orders, stock)
    with orders.transaction() as session:
        for key in "abc":
            orders.app.outbox.add(session, Event(type="orders.placed", key=key))
    drain(orders.relay())
    return orders, stock


def reason_of(service: Service, key: str = "b") -> Any:
    return service.rows("SELECT last_error FROM shield_inbox WHERE key = :key", key=key)[0][0]


def run_anywhere(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, also where the caller's thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def fail_in_tasks(*errors: BaseException) -> None:
    """Raise the errors as the tasks of an asyncio.TaskGroup do."""

    async def raise_(error: BaseException) -> None:
        raise error

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            for error in errors:
                tasks.create_task(raise_(error))

    run_anywhere(run())


async def cancel_a_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


def cancel_in_a_group() -> None:
    raise BaseExceptionGroup("two of them", [asyncio.CancelledError(), ValueError("no shelf")])


@ALONE
@pytest.mark.parametrize(
    "cancel", [lambda: run_anywhere(cancel_a_task()), cancel_in_a_group], ids=["task", "group"]
)
def test_a_cancelled_task_fails_the_attempt_and_not_the_worker(
    services: tuple[Service, Service], cancel: Callable[[], None], alone: bool
) -> None:
    _, stock = services

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        effect("reserved")(session, event)
        if event.key == "b":
            cancel()

    drain(stock.app.build_consumer("stock"))
    assert sorted(stock.effects()) == ["a", "c"]
    assert stock.inbox() == {"PROCESSED": 2, "MAX_RECONSUMED": 1}
    assert "was cancelled" in reason_of(stock)
    assert "CancelledError" in reason_of(stock)


@ALONE
@pytest.mark.parametrize(
    ("errors", "runs"),
    [
        ((Refused("no shelf"),), 1),
        ((Refused("no shelf"), Refused("sold out")), 1),
        ((Refused("no shelf"), ValueError("sold out")), QUICK.max_attempts),
        ((ValueError("no shelf"),), QUICK.max_attempts),
    ],
)
def test_group_of_refusals_is_a_refusal_that_names_them(
    services: tuple[Service, Service], errors: tuple[Exception, ...], runs: int, alone: bool
) -> None:
    _, stock = services
    told: list[ConsumeContext] = []
    stock.app.hooks.on_consume_error(told.append)
    attempts = "SELECT attempts, status FROM shield_inbox WHERE key = 'b'"

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "b":
            fail_in_tasks(*errors)

    drain(stock.app.build_consumer("stock"))
    assert stock.rows(attempts) == [(runs, "MAX_RECONSUMED")]
    for error in errors:
        assert f"{type(error).__name__}: {error}" in reason_of(stock)
        assert all(str(error) in context.error for context in told)


@ALONE
def test_refused_event_of_a_handler_fails_the_attempt(
    services: tuple[Service, Service], alone: bool
) -> None:
    _, stock = services
    quantities: list[Any] = ["many", "some", 3]

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        effect("reserved")(session, event)
        if event.key == "b":
            payload = {"quantity": quantities[0]}
            # In a batch, the attempt that fails after others is repeated.
            quantities.append(quantities.pop(0))
            stock.app.outbox.add(session, Event(type="stock.reserved", payload=payload))

    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"PROCESSED": 3}
    assert sorted(stock.effects()) == ["a", "b", "c"]


def test_refused_event_of_a_compensation_fails_the_attempt(
    services: tuple[Service, Service],
) -> None:
    orders, stock = services
    quantities: list[Any] = ["many", 3, 3, 3]

    @orders.app.consumer("orders").compensates("orders.placed", retry=QUICK)
    def cancel(session: Session, event: Event) -> None:
        payload = {"quantity": quantities.pop(0)}
        orders.app.outbox.add(session, Event(type="orders.cancelled", payload=payload))

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def refuse(session: Session, event: Event) -> None:
        raise Refused("no shelf")

    drain(stock.app.build_consumer("stock"))
    drain(stock.relay(), orders.app.build_consumer("orders"))
    assert orders.inbox() == {"PROCESSED": 3}


def test_a_payload_that_does_not_fit_fails_the_attempt(
    services: tuple[Service, Service],
) -> None:
    _, stock = services
    told: list[ConsumeContext] = []
    stock.app.hooks.on_consume_error(told.append)
    stock.app.consumer("stock").handles("orders.placed", payload=dict[str, int], retry=QUICK)(
        effect("reserved")
    )
    drain(stock.app.build_consumer("stock"))
    assert stock.rows("SELECT attempts FROM shield_inbox") == [(QUICK.max_attempts,)] * 3
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    assert all(isinstance(context.exception, PayloadRefused) for context in told)


def test_a_payload_that_does_not_fit_is_parked_where_bugs_are(
    services: tuple[Service, Service],
) -> None:
    _, stock = services
    parking = replace(QUICK, then="park")
    stock.app.consumer("stock").handles("orders.placed", payload=dict[str, int], retry=parking)(
        effect("reserved")
    )
    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"DEAD": 3}
    assert stock.outbox() == {}


def check(value: object) -> object:
    """A validator with a bug, whose message contains data."""
    raise ValueError("secret 4711")


def test_the_line_of_a_validator_with_a_bug_is_named(services: tuple[Service, Service]) -> None:
    _, stock = services
    stock.app.consumer("stock").handles(
        "orders.placed", payload=Annotated[object, AfterValidator(check)], retry=QUICK
    )(effect("reserved"))
    drain(stock.app.build_consumer("stock"))
    reason = reason_of(stock)
    assert re.search(r"raised at consumer/test_failures\.py:\d+ in check", reason)
    assert "4711" not in reason


@ALONE
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (Refused("sold out"), "a Refused, which it did not raise"),
        (Refused, "the class Refused, which it did not raise"),
        (ValueError("x"), "a ValueError, which it did not raise"),
        (insert(table("effect")), "an Insert statement, which it did not execute"),
        ([(number for number in ())], "a list with a generator"),
        ({"a": [partial(print)]}, "a dict with a partial"),
        (zip(()), "a zip"),
    ],
)
def test_a_result_that_should_have_been_done_fails_the_attempt(
    services: tuple[Service, Service], returned: object, said: str, alone: bool
) -> None:
    _, stock = services
    stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)(
        lambda session, event: returned
    )
    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    assert said in reason_of(stock)


@ALONE
@pytest.mark.parametrize("kind", [list, tuple, set])
def test_a_handler_that_returns_coroutines_has_not_run(
    services: tuple[Service, Service], kind: Callable[[Any], Any], alone: bool
) -> None:
    _, stock = services

    async def later(session: Session, event: Event) -> None:
        effect("reserved")(session, event)

    def reserve(session: Session, event: Event) -> Any:
        return kind([later(session, event)])

    stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)(reserve)
    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"MAX_RECONSUMED": 3}
    assert f"a {kind.__name__} with a coroutine" in reason_of(stock)


@ALONE
def test_a_handler_may_return_rows(services: tuple[Service, Service], alone: bool) -> None:
    _, stock = services

    def reserve(session: Session, event: Event) -> Any:
        effect("reserved")(session, event)
        return [event, print], (1, None)

    stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)(reserve)
    drain(stock.app.build_consumer("stock"))
    assert stock.inbox() == {"PROCESSED": 3}


@pytest.mark.parametrize("first", ["rollback", "event"])
def test_compensating_group_settles_no_event_of_another_group(
    make_service: Make, first: str
) -> None:
    ours, theirs, downstream = make_service("ours"), make_service("theirs"), make_service("stock")
    for service in (ours, theirs):
        service.app.declare("orders.placed")
    make_topics(ours)
    ours.app.consumer("books").handles("orders.placed")(effect("booked"))
    ours.app.consumer("undo").compensates("orders.placed")(effect("undone"))

    @downstream.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def refuse(session: Session, event: Event) -> None:
        raise Refused("no shelf")

    with theirs.transaction() as session:
        theirs.app.outbox.add(session, Event(type="orders.placed", key="k"))
    drain(theirs.relay(), downstream.app.build_consumer("stock"))
    drain(downstream.relay())
    groups = ["undo", "books"] if first == "rollback" else ["books", "undo"]
    for group in groups:
        drain(ours.app.build_consumer(group))
    settled = "SELECT consumer_group, status FROM shield_inbox ORDER BY 1"
    assert ours.rows(settled) == [("books", "PROCESSED"), ("undo", "DEAD")]
    assert ours.effects() == ["k"]
    [(reason,)] = ours.rows("SELECT last_error FROM shield_inbox WHERE status = 'DEAD'")
    assert "Declare `handles` and `compensates` of a type in one group" in reason


@pytest.mark.parametrize(("declares", "status"), [(True, "PROCESSED"), (False, "DEAD")])
def test_only_a_writer_settles_rollback_of_an_unreceived_event(
    make_service: Make, declares: bool, status: str
) -> None:
    """Only a service that writes the type may leave the rollback to another writer."""
    ours, theirs, downstream = make_service("ours"), make_service("theirs"), make_service("stock")
    theirs.app.declare("orders.placed")
    if declares:
        ours.app.declare("orders.placed")
    make_topics(theirs)
    ours.app.consumer("undo").compensates("orders.placed")(effect("undone"))

    @downstream.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def refuse(session: Session, event: Event) -> None:
        raise Refused("no shelf")

    with theirs.transaction() as session:
        theirs.app.outbox.add(session, Event(type="orders.placed", key="k"))
    drain(theirs.relay(), downstream.app.build_consumer("stock"))
    drain(downstream.relay())
    drain(ours.app.build_consumer("undo"))
    assert ours.inbox() == {status: 1}
    assert ours.effects() == []


@ALONE
def test_handler_knows_its_attempt_and_the_last_one(
    services: tuple[Service, Service], alone: bool
) -> None:
    _, stock = services
    attempts: list[tuple[int, int]] = []

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "b":
            attempts.append((event.attempt, event.max_attempts))
            raise ValueError("no shelf")

    drain(stock.app.build_consumer("stock"))
    # In a batch, the code of the first attempt runs again at the beginning of a transaction.
    assert sorted(set(attempts)) == [(1, 3), (2, 3), (3, 3)]


@ALONE
def test_the_inbox_names_the_raising_line_and_upstream_does_not(
    services: tuple[Service, Service], alone: bool
) -> None:
    _, stock = services

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=alone)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "b":
            raise ValueError("no shelf")
        if event.key == "c":
            raise Refused("sold out")

    drain(stock.app.build_consumer("stock"))
    assert re.search(
        r"ValueError: no shelf \(raised at consumer/test_failures\.py:\d+ in reserve\)",
        reason_of(stock),
    )
    assert ("Refused: sold out",) in stock.rows("SELECT last_error FROM shield_inbox")
    payloads = stock.rows("SELECT payload FROM shield_outbox WHERE tx_kind = 'ROLLBACK'")
    assert sorted(payloads) == [
        ('{"reason": "Refused: sold out"}',),
        ('{"reason": "ValueError: no shelf"}',),
    ]


@pytest.mark.parametrize(("level", "tracebacks"), [(logging.INFO, 0), (logging.DEBUG, 2)])
def test_debug_log_has_the_traceback_of_each_attempt(
    services: tuple[Service, Service],
    caplog: pytest.LogCaptureFixture,
    level: int,
    tracebacks: int,
) -> None:
    _, stock = services

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=True)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "b":
            raise ValueError("no shelf")

    with caplog.at_level(level, "shieldtx"):
        drain(stock.app.build_consumer("stock"))
    shown = [r for r in caplog.records if getattr(r, "action", "") == "attempt_raised"]
    # The third attempt is the last one, which is given up with its traceback at any level.
    assert [record.exc_info is not None for record in shown] == [True] * tracebacks
    [given_up] = [r for r in caplog.records if getattr(r, "action", "") == "event_given_up"]
    assert given_up.exc_info is not None
