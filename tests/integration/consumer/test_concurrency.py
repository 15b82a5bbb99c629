"""Several keys at a time in one consumer: at the same time, and each key in order."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.errors import ConfigurationError
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.handler_styles import PLAIN, HandlerStyle
from tests.support.service import QUICK, Service, drain, effect, make_topics

Make = Callable[..., Service]
AT_ONCE = 4


@pytest.fixture
def deliver(make_service: Make) -> Callable[..., None]:
    """Deliver events with these keys to the handlers of a service."""
    orders = make_service("orders", style=PLAIN)
    orders.app.declare("orders.placed")

    def to(stock: Service, *keys: str | None) -> None:
        make_topics(orders, stock)
        events = [
            Event(type="orders.placed", key=key, payload={"n": n}) for n, key in enumerate(keys)
        ]
        with orders.transaction() as session:
            orders.app.outbox.add_all(session, events)
        drain(orders.relay(), stock.app.build_consumer("stock"))

    return to


def test_threads_handle_keys_at_the_same_time(make_service: Make, deliver: Any) -> None:
    stock = make_service("stock", consumer_concurrency=AT_ONCE)
    # Passes only when this many handlers wait in it together.
    together = threading.Barrier(AT_ONCE)

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        together.wait(timeout=20)
        effect("reserved")(session, event)

    deliver(stock, *"abcd")
    assert sorted(stock.effects()) == list("abcd")


def test_tasks_handle_keys_at_the_same_time(make_service: Make, deliver: Any) -> None:
    style = HandlerStyle(name="tasks", driver="psycopg", lanes=AT_ONCE)
    stock = make_service("stock", style=style)
    waiting: list[asyncio.Future[None]] = []

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    async def reserve(session: AsyncSession, event: Event) -> None:
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == AT_ONCE:
            for each in waiting:
                each.set_result(None)
        await asyncio.wait_for(mine, timeout=20)
        await session.run_sync(effect("reserved"), event)

    deliver(stock, *"abcd")
    assert sorted(stock.effects()) == list("abcd")


@pytest.mark.parametrize("driver", [None, "psycopg", "asyncpg"])
def test_each_key_is_handled_in_order(make_service: Make, deliver: Any, driver: str | None) -> None:
    stock = make_service("stock", style=HandlerStyle(name="x", driver=driver, lanes=AT_ONCE))
    begun: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK, alone=True)
    def reserve(session: Session, event: Event) -> None:
        key = event.key or ""
        assert key not in running, "two events of a key at the same time"
        running.add(key)
        begun[key].append(event.payload["n"])
        effect("reserved")(session, event)
        running.remove(key)

    keys = [f"k{n % 7}" for n in range(140)]
    deliver(stock, *keys)
    assert sorted(stock.effects()) == sorted(keys)
    assert all(numbers == sorted(numbers) for numbers in begun.values())


def test_failed_event_of_one_key_does_not_stop_others(make_service: Make, deliver: Any) -> None:
    stock = make_service("stock", consumer_concurrency=AT_ONCE)

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "bad":
            raise ValueError("no shelf")
        effect("reserved")(session, event)

    deliver(stock, "a", "bad", "b", "bad", "c")
    assert sorted(stock.effects()) == ["a", "b", "c"]
    assert stock.inbox() == {"PROCESSED": 3, "MAX_RECONSUMED": 2}


def test_system_exit_in_one_lane_ends_the_pass(make_service: Make, deliver: Any) -> None:
    stock = make_service("stock", consumer_concurrency=AT_ONCE)

    @stock.app.consumer("stock").handles("orders.placed", retry=QUICK)
    def reserve(session: Session, event: Event) -> None:
        if event.key == "b":
            raise SystemExit(3)
        effect("reserved")(session, event)

    with pytest.raises(SystemExit):
        deliver(stock, *"abcd")
    assert sorted(stock.effects()) == ["a", "c", "d"]


def test_a_pool_that_is_too_small_is_refused(make_service: Make) -> None:
    stock = make_service("stock")
    url = stock.engine.url.render_as_string(hide_password=False)
    settings = Settings(source="stock", database_url=url, consumer_concurrency=16)
    small = create_engine(url, pool_size=2, max_overflow=3)
    app = ShieldTx(settings, engine=small, broker=MemoryBroker())
    app.consumer("stock").handles("orders.placed")(effect("reserved"))
    with pytest.raises(ConfigurationError, match=r"at most 5 connections.*needs 20"):
        app.build_consumer("stock")
    small.dispose()


def test_an_asynchronous_pool_that_is_too_small_is_refused(make_service: Make) -> None:
    stock = make_service("stock")
    url = stock.engine.url.render_as_string(hide_password=False)
    settings = Settings(source="stock", database_url=url, consumer_concurrency=16)
    app = ShieldTx(settings, async_engine=create_async_engine(url), broker=MemoryBroker())

    @app.consumer("stock").handles("orders.placed")
    async def reserve(session: AsyncSession, event: Event) -> None:
        await session.run_sync(effect("reserved"), event)

    with pytest.raises(ConfigurationError, match="at most 15 connections"):
        app.build_consumer("stock")
    app.close()
