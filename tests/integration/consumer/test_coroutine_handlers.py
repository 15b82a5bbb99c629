"""Coroutine handlers: what an `async def` may do wrong, and what it may rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import Event, Refused, RetryPolicy, Settings, ShieldTx
from shieldtx._coroutines import wait_for
from shieldtx.domain.states import LocalOutcome
from shieldtx.errors import ConfigurationError
from shieldtx.testing.memory_broker import MemoryBroker
from tests.conftest import Eventually
from tests.support.handler_styles import PLAIN, HandlerStyle
from tests.support.service import QUICK, Service, drain, effect, make_topics

Make = Callable[..., Service]

ONCE = RetryPolicy(max_attempts=1)
HANDLER_STYLES = [
    HandlerStyle(name="psycopg", driver="psycopg"),
    HandlerStyle(name="asyncpg", driver="asyncpg"),
    HandlerStyle(name="tasks", driver="psycopg", lanes=4),
]


async def leave_effect(session: AsyncSession, event: Event, what: str) -> None:
    await session.execute(
        text("INSERT INTO effects VALUES (:id, :key, :what)"),
        {"id": str(event.id), "key": event.key, "what": what},
    )


@dataclass(frozen=True, slots=True)
class Shop:
    """An upstream that writes orders, and a downstream with coroutine handlers."""

    orders: Service
    stock: Service

    def handle(self, handler: Callable[[AsyncSession, Any], Awaitable[None]], **how: Any) -> None:
        group = self.stock.app.consumer("stock")
        group.handles("orders.placed", **{"retry": QUICK} | how)(handler)

    def deliver(self, *keys: str | None) -> list[Event]:
        events = [Event(type="orders.placed", key=key, payload={}) for key in keys]
        with self.orders.transaction() as session:
            self.orders.app.outbox.add_all(session, events)
        drain(self.orders.relay(), self.stock.app.build_consumer("stock"))
        return events

    def errors(self) -> set[str]:
        return {error for (error,) in self.stock.rows("SELECT last_error FROM shield_inbox")}


@pytest.fixture
def shop(make_service: Make) -> Shop:
    orders, stock = make_service("orders"), make_service("stock")
    orders.app.declare("orders.placed")
    stock.app.declare("stock.reserved")
    make_topics(orders, stock)
    return Shop(orders, stock)


def test_events_of_a_coroutine_are_in_its_transaction(shop: Shop) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")
        shop.stock.app.outbox.add(session, Event(type="stock.reserved", key=event.key, payload={}))
        await asyncio.sleep(0)
        if event.key == "b":
            raise Refused("no shelf")

    shop.handle(reserve)
    a, _ = shop.deliver("a", "b")
    assert shop.stock.effects() == ["a"]
    written = shop.stock.rows("SELECT event_type, tx_kind, key, causation_id FROM shield_outbox")
    assert ("stock.reserved", "COMMIT", "a", a.id) in [(t, k, key, c) for t, k, key, c in written]
    assert sorted((t, k) for t, k, *_ in written) == [
        ("orders.placed", "ROLLBACK"),
        ("stock.reserved", "COMMIT"),
    ]


def test_a_call_that_was_not_awaited_fails_the_attempt(shop: Shop) -> None:
    async def reserve(session: Any, event: Event) -> None:
        session.execute(text("INSERT INTO effects VALUES ('1', '1', 'forgotten')"))

    shop.handle(reserve)
    shop.deliver("a")
    assert shop.stock.effects() == []
    assert shop.stock.inbox() == {"MAX_RECONSUMED": 1}
    assert "session.execute(...) was not awaited" in shop.errors().pop()


LATER = text("INSERT INTO effects VALUES ('1', 'late', 'late')")
SLOW = text("INSERT INTO effects SELECT '0', 'slow', 'late' FROM pg_sleep(30)")


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_a_task_in_the_middle_of_a_call_has_no_effect(shop: Shop, alone: bool) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def work(session: AsyncSession) -> None:
        await session.execute(SLOW)
        await session.execute(LATER)

    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")
        if event.key == "b":
            tasks.append(asyncio.create_task(work(session)))
            # The task is in its first call when the handler returns.
            await asyncio.sleep(0.05)

    shop.handle(reserve, alone=alone)
    shop.deliver("a", "b", "c")
    assert sorted(shop.stock.effects()) == ["a", "c"]
    assert shop.stock.inbox() == {"PROCESSED": 2, "MAX_RECONSUMED": 1}
    [error] = shop.errors() - {None}
    assert "a task that it had started still used the session" in error
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize("alone", [False, True], ids=["batch", "alone"])
def test_a_failed_gather_leaves_no_effect_of_its_other_task(shop: Shop, alone: bool) -> None:
    async def work(session: AsyncSession) -> None:
        await session.execute(SLOW)
        await session.execute(LATER)

    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("no shelf")

    async def reserve(session: AsyncSession, event: Event) -> None:
        if event.key == "b":
            await asyncio.gather(work(session), fail())
        await leave_effect(session, event, "reserved")

    shop.handle(reserve, alone=alone)
    shop.deliver("a", "b", "c", "d")
    assert sorted(shop.stock.effects()) == ["a", "c", "d"]
    [error] = shop.errors() - {None}
    assert error.startswith("ValueError: no shelf")


def test_a_task_of_an_earlier_event_reaches_no_later_one(shop: Shop) -> None:
    connections: list[Any] = []
    refused: list[BaseException] = []

    async def reserve(session: AsyncSession, event: Event) -> None:
        if not connections:
            connections.append(await session.connection())
        else:
            # As a task of the first event would, whose context it runs in.
            task = contexts[0].run(asyncio.create_task, late(connections[0]))
            await asyncio.wait({task})
        contexts.append(copy_context())
        await leave_effect(session, event, "reserved")

    async def late(connection: Any) -> None:
        try:
            await connection.execute(LATER)
        except BaseException as error:
            refused.append(error)
            raise

    contexts: list[Context] = []
    shop.handle(reserve)
    shop.deliver("a", "a")
    assert shop.stock.effects() == ["a", "a"]
    assert refused, "the late statement was not refused"


def test_a_cancelled_task_of_the_application_fails_one_attempt(shop: Shop) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        if event.key == "b":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10)
        await leave_effect(session, event, "reserved")

    shop.handle(reserve)
    shop.deliver("a", "b", "c")
    assert sorted(shop.stock.effects()) == ["a", "c"]
    [error] = shop.errors() - {None}
    assert "was cancelled" in error


def test_system_exit_of_a_handlers_task_ends_the_pass(shop: Shop) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def reserve(session: AsyncSession, event: Event) -> None:
        if event.key == "b":
            await asyncio.gather(asyncio.create_task(leave()), asyncio.sleep(10))
        await leave_effect(session, event, "reserved")

    shop.handle(reserve, alone=True)
    with pytest.raises(SystemExit):
        shop.deliver("a", "b", "c")
    # No event has lost an attempt finally: the interrupted ones wait for their leases.
    assert set(shop.stock.inbox()) <= {"PROCESSED", "PROCESSING", "INIT"}
    with pytest.raises(SystemExit):
        shop.stock.app.connections.event_loop.run([lambda: None])


def test_a_deadlock_does_not_count_as_a_failure_of_an_event(shop: Shop) -> None:
    tries: list[str | None] = []

    async def reserve(session: AsyncSession, event: Event) -> None:
        tries.append(event.key)
        if len(tries) == 2:
            await session.execute(
                text("DO $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '40P01'; END $$")
            )
        await leave_effect(session, event, "reserved")

    shop.handle(reserve, retry=ONCE)
    shop.deliver("a", "b", "c")
    assert sorted(shop.stock.effects()) == ["a", "b", "c"]
    assert shop.stock.inbox() == {"PROCESSED": 3}


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_coroutine_that_ends_the_transaction_fails(shop: Shop, end: str) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")
        await getattr(session, end)()

    shop.handle(reserve)
    shop.deliver("a", "b")
    assert shop.stock.effects() == []
    assert shop.stock.inbox() == {"MAX_RECONSUMED": 2}
    assert "leave commit, rollback and close to shieldtx" in shop.errors().pop()


def test_a_coroutine_that_goes_on_after_a_database_error_fails(shop: Shop) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")
        if event.key == "b":
            with pytest.raises(Exception, match="nowhere"):
                await session.execute(text("SELECT * FROM nowhere"))

    shop.handle(reserve)
    shop.deliver("a", "b", "c")
    assert sorted(shop.stock.effects()) == ["a", "c"]
    [error] = shop.errors() - {None}
    assert "went on after an error of the database" in error


def test_a_savepoint_of_a_coroutine_undoes_its_part_alone(shop: Shop) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "kept")
        savepoint = await session.begin_nested()
        await leave_effect(session, event, "undone")
        await savepoint.rollback()

    shop.handle(reserve)
    shop.deliver("a", "b")
    assert sorted(shop.stock.effects("kept")) == ["a", "b"]
    assert shop.stock.effects("undone") == []


def test_temporary_tables_of_a_driver_end_the_transaction(shop: Shop) -> None:
    async def reserve(session: AsyncSession, event: Event) -> None:
        connection = await session.connection()
        raw = await connection.get_raw_connection()
        await raw.driver_connection.execute("CREATE TEMPORARY TABLE scratch (n int) ON COMMIT DROP")
        await leave_effect(session, event, "reserved")

    shop.handle(reserve, alone=True)
    shop.deliver("a", "b", "c")
    assert sorted(shop.stock.effects()) == ["a", "b", "c"]


def test_lists_are_handled_by_coroutines(shop: Shop) -> None:
    sizes: list[int] = []

    async def reserve_all(session: AsyncSession, events: list[Event]) -> None:
        sizes.append(len(events))
        for event in events:
            await leave_effect(session, event, "reserved")

    shop.stock.app.consumer("stock").handles_many("orders.placed", retry=QUICK)(reserve_all)
    shop.deliver(*"abcdef")
    assert sorted(shop.stock.effects()) == list("abcdef")
    assert sum(sizes) == 6


def test_compensations_are_coroutines(shop: Shop) -> None:
    def refuse(session: Session, event: Event) -> None:
        raise Refused("no shelf")

    async def cancel(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "cancelled")

    shop.orders.app.consumer("orders").compensates("orders.placed")(cancel)
    shop.stock.app.consumer("stock").handles("orders.placed")(refuse)
    shop.deliver("a", "b")
    drain(shop.stock.relay(), shop.orders.app.build_consumer("orders"))
    assert sorted(shop.orders.effects("cancelled")) == ["a", "b"]


@pytest.mark.parametrize("lanes", [1, 4])
def test_plain_handlers_share_a_group_with_coroutines(
    make_service: Make, shop: Shop, lanes: int
) -> None:
    stock = make_service("mixed", style=PLAIN, consumer_concurrency=lanes)
    app = ShieldTx(stock.app.settings, broker=stock.app.broker)
    group = app.consumer("mixed")

    @group.handles("orders.placed", retry=QUICK)
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")

    group.handles("orders.paid", topic="orders.placed")(effect("paid"))
    shop.orders.app.declare("orders.paid", topic="orders.placed")
    with shop.orders.transaction() as session:
        shop.orders.app.outbox.add(session, Event(type="orders.paid", key="p", payload={}))
    if lanes > 1:
        with pytest.raises(ConfigurationError, match=r"plain ones for orders\.paid"):
            app.build_consumer("mixed")
    else:
        consumer = app.build_consumer("mixed")
        drain(shop.orders.relay(), consumer)
        assert stock.effects("paid") == ["p"]
        consumer.close()
    app.close()


def test_a_checker_is_a_coroutine(make_service: Make, eventually: Eventually) -> None:
    bank = make_service("bank", half_immunity=timedelta(milliseconds=1))
    bank.app.declare("money.moved")
    make_topics(bank)
    asked: list[Any] = []

    @bank.app.checks("money.moved")
    async def outcome_of(event: Event) -> LocalOutcome:
        await asyncio.sleep(0)
        asked.append(event.key)
        return LocalOutcome.COMMIT

    bank.app.half_prepare("money.moved", {}, key="a")
    [check_back] = bank.app.half_messages.check_backs()
    eventually(lambda: check_back.run_once().committed == 1, "the message is not committed")
    assert asked == ["a"]


def test_an_engine_of_plain_functions_alone_is_refused(shop: Shop) -> None:
    url = shop.stock.engine.url.render_as_string(hide_password=False)
    settings = Settings(source="stock", database_url=url)
    app = ShieldTx(settings, engine=shop.stock.engine, broker=MemoryBroker())

    @app.consumer("stock").handles("orders.placed")
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")

    with pytest.raises(ConfigurationError, match="async_engine=create_async_engine"):
        app.build_consumer("stock")
    app.close()


def test_an_engine_of_another_database_is_refused(shop: Shop) -> None:
    url = shop.orders.engine.url
    elsewhere = create_async_engine(url)
    settings = Settings(
        source="stock", database_url=shop.stock.engine.url.render_as_string(hide_password=False)
    )
    app = ShieldTx(
        settings, engine=shop.stock.engine, async_engine=elsewhere, broker=MemoryBroker()
    )

    @app.consumer("stock").handles("orders.placed")
    async def reserve(session: AsyncSession, event: Event) -> None:
        await leave_effect(session, event, "reserved")

    with pytest.raises(ConfigurationError, match="engines of the same database"):
        app.connections.run_on_loop([lambda: None])
    app.connections.event_loop.run([elsewhere.sync_engine.dispose])
    app.close()


def test_a_stream_ends_with_its_handler(shop: Shop) -> None:
    rows: list[int] = []
    errors: list[BaseException] = []

    async def read(result: Any) -> None:
        try:
            async for (number,) in result:
                rows.append(number)
                await asyncio.sleep(0.01)
        except BaseException as error:
            errors.append(error)
            raise

    async def reserve(session: AsyncSession, event: Event) -> None:
        result = await session.stream(text("SELECT n FROM generate_series(1, 100000) n"))
        tasks.append(asyncio.create_task(read(result)))
        await asyncio.sleep(0.03)
        await leave_effect(session, event, "reserved")

    tasks: list[asyncio.Task[None]] = []
    shop.handle(reserve)
    shop.deliver("a", "b")
    assert sorted(shop.stock.effects()) == ["a", "b"]
    shop.stock.app.connections.event_loop.run([lambda: wait_for(asyncio.wait(tasks, timeout=10))])
    assert len(errors) == 2
    assert 0 < len(rows) < 100_000
