"""Nested blocks: each message is sent only if its own local transaction has committed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from shieldtx.errors import TransactionRefused
from tests.support.service import Service, make_topics

OUTER, INNER = "transfer.made", "fee.charged"


class Way(Enum):
    """How a service makes its local transaction."""

    DECORATED = auto()
    BLOCK = auto()
    """Guarded by `shield.guard`."""
    OWN_GUARD = auto()
    """Guarded by the block's own `guard`."""


class End(Enum):
    COMMITS = auto()
    ROLLS_BACK = auto()
    RAISES_BEFORE_GUARD = auto()


class Failed(Exception):
    """The error that a service raises."""


@pytest.fixture
def pay(make_service: Callable[..., Service], ledger: Engine) -> Service:
    service = make_service("pay", half_check_timeout=5.0, barrier_patience=0.3)
    service.app.declare(OUTER)
    service.app.declare(INNER)
    service.app.barrier(OUTER, INNER, engine=ledger)
    make_topics(service)
    return service


def _nothing() -> None:
    """Stand for a service that calls no other service."""


def _service(
    pay: Service, ledger: Engine, name: str, way: Way, end: End, calls: Callable[[], None]
) -> Callable[[], None]:
    """Make a service that calls another service, and then makes its own local transaction."""

    def local(guard: Callable[[Any], None]) -> None:
        calls()
        if end is End.RAISES_BEFORE_GUARD:
            raise Failed
        with ledger.begin() as connection:
            guard(connection)
            connection.execute(text("INSERT INTO entries VALUES (:what)"), {"what": name})
            if end is End.ROLLS_BACK:
                raise Failed

    @pay.app.transactional(name, payload="payload")
    def decorated(payload: str) -> None:
        local(pay.app.guard)

    def block() -> None:
        with pay.app.half(name, name) as half:
            local(half.guard if way is Way.OWN_GUARD else pay.app.guard)

    return (lambda: decorated(name)) if way is Way.DECORATED else block


def _sent(pay: Service) -> set[str]:
    """Check all messages until their outcomes are known, and return the sent messages."""
    pay.execute(
        "UPDATE shield_outbox SET check_at = now() - interval '1 s' WHERE check_at IS NOT NULL"
    )
    for check_back in pay.app.half_messages.check_backs():
        while check_back.run_once().more:
            continue
    rows = pay.rows("SELECT event_type, status FROM shield_outbox")
    assert {status for _, status in rows} <= {"INIT", "DISCARDED"}
    return {name for name, status in rows if status == "INIT"}


def _committed(ledger: Engine) -> set[str]:
    with ledger.connect() as connection:
        return set(connection.scalars(text("SELECT what FROM entries")))


@pytest.mark.parametrize(("outer_end", "inner_end"), [*product(End, End)], ids=lambda end: end.name)
@pytest.mark.parametrize(("outer", "inner"), [*product(Way, Way)], ids=lambda way: way.name)
def test_each_of_nested_services_sends_its_own_message(
    pay: Service, ledger: Engine, outer: Way, inner: Way, outer_end: End, inner_end: End
) -> None:
    def calls() -> None:
        # The transfer is made even if its fee cannot be charged.
        with suppress(Failed, TransactionRefused):
            _service(pay, ledger, INNER, inner, inner_end, _nothing)()

    with suppress(Failed):
        _service(pay, ledger, OUTER, outer, outer_end, calls)()

    sent = _sent(pay)
    assert sent == _committed(ledger)
    assert (OUTER in sent) is (outer_end is End.COMMITS)
    # In a block inside another block, `shield.guard` is refused.
    is_refused = inner is Way.BLOCK
    assert (INNER in sent) is (inner_end is End.COMMITS and not is_refused)


def test_guard_refused_inside_a_block_is_not_a_commit(pay: Service, ledger: Engine) -> None:
    """The service swallows the error of the guard and the error that aborted the transaction."""

    def swallow() -> None:
        with suppress(TransactionRefused), pay.app.half(INNER), ledger.begin() as connection:
            with suppress(TransactionRefused):
                pay.app.guard(connection)
            with suppress(DBAPIError):
                connection.execute(text("SELECT 1 / 0"))

    with pytest.raises(TransactionRefused, match="did not commit"), pay.app.half(OUTER):
        swallow()
    assert _sent(pay) == _committed(ledger) == set()


def test_method_with_two_decorators_has_two_messages(pay: Service, ledger: Engine) -> None:
    @pay.app.transactional(OUTER, payload="payload")
    @pay.app.transactional(INNER, payload="payload")
    def transfer(payload: str, again: int) -> None:
        if again:
            # A separate call, with its own messages.
            transfer(payload, again - 1)
        with ledger.begin() as connection:
            pay.app.guard(connection)
            connection.execute(text("INSERT INTO entries VALUES (:what)"), {"what": payload})

    transfer("one", again=2)

    rows = pay.rows("SELECT event_type, status FROM shield_outbox")
    assert sorted(rows) == [(name, "INIT") for name in (INNER, OUTER) for _ in range(3)]
    with ledger.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shield_barrier WHERE committed")) == 6


def test_task_does_not_guard_with_an_ended_block(pay: Service, ledger: Engine) -> None:
    ended = asyncio.Event()

    async def in_background() -> None:
        await ended.wait()
        with pay.app.half(INNER, "fee"), ledger.begin() as connection:
            pay.app.guard(connection)
            connection.execute(text("INSERT INTO entries VALUES (:what)"), {"what": INNER})

    async def main() -> None:
        with suppress(Failed):
            async with pay.app.half(OUTER, "transfer"):
                task = asyncio.create_task(in_background())
                raise Failed
        ended.set()
        await task

    asyncio.run(main())

    assert _sent(pay) == _committed(ledger) == {INNER}


def test_guard_in_a_task_that_outlives_its_block_is_refused(pay: Service, ledger: Engine) -> None:
    async def in_background(ended: asyncio.Event) -> None:
        await ended.wait()
        with ledger.begin() as connection:
            pay.app.guard(connection)

    async def main() -> None:
        ended = asyncio.Event()
        with suppress(Failed):
            async with pay.app.half(OUTER, "transfer"):
                task = asyncio.create_task(in_background(ended))
                raise Failed
        ended.set()
        await task

    with pytest.raises(TransactionRefused, match="in which this task or thread was started"):
        asyncio.run(main())


@pytest.mark.parametrize("way", [Way.DECORATED, Way.BLOCK])
def test_task_of_an_ended_inner_block_does_not_guard_with_outer(
    pay: Service, ledger: Engine, way: Way
) -> None:
    context = contextvars.copy_context()

    def keep_context() -> None:
        nonlocal context
        context = contextvars.copy_context()

    def local() -> None:
        with ledger.begin() as connection:
            pay.app.guard(connection)
            connection.execute(text("INSERT INTO entries VALUES ('late')"))

    def calls() -> None:
        with suppress(Failed):
            # The block ends without a local transaction: a task started in it runs too late.
            _service(pay, ledger, INNER, way, End.RAISES_BEFORE_GUARD, keep_context)()
        with pytest.raises(TransactionRefused, match="in which this task or thread was started"):
            context.run(local)
        raise Failed

    with suppress(Failed):
        _service(pay, ledger, OUTER, way, End.COMMITS, calls)()

    assert _sent(pay) == _committed(ledger) == set()


def test_outer_block_guards_again_after_an_inner_block(pay: Service, ledger: Engine) -> None:
    with pay.app.half(OUTER, "transfer"):
        with pay.app.half(INNER, "fee") as fee:
            fee.rollback()
        with ledger.begin() as connection:
            pay.app.guard(connection)
            connection.execute(text("INSERT INTO entries VALUES (:what)"), {"what": OUTER})

    assert _sent(pay) == _committed(ledger) == {OUTER}
