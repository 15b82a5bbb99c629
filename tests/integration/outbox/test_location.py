"""Events go into the database that their relay polls, however it is reached, or nowhere."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, Text, column, create_engine, table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx import Event
from shieldtx.app.application import ShieldTx
from shieldtx.errors import TransactionRefused
from shieldtx.settings.settings import Settings
from tests.support.log_records import logged
from tests.support.lost_connections import cut
from tests.support.migrated_databases import MigratedDatabases
from tests.support.service import SHARDS, Service, drain, make_topics

PLACED = "orders.placed"
PAYMENTS = table("payments", column("what", Text))


@pytest.fixture
def orders(make_service: Callable[..., Service]) -> Service:
    service = make_service("orders")
    service.app.declare(PLACED)
    service.execute("CREATE TABLE payments (what text)")
    make_topics(service)
    return service


@pytest.fixture
def elsewhere(databases: MigratedDatabases) -> Iterator[URL]:
    """Another database, which also has all tables of shieldtx, as a database with a barrier has."""
    with databases.database(shards=SHARDS) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE payments (what text)"))
        yield engine.url
        engine.dispose()


def by_session(outbox: Any, url: URL) -> None:
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        session.execute(PAYMENTS.insert().values(what="paid"))
        outbox.add(session, Event(type=PLACED, key="k"))
    engine.dispose()


def by_connection(outbox: Any, url: URL) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(PAYMENTS.insert().values(what="paid"))
        outbox.add(connection, Event(type=PLACED, key="k"))
    engine.dispose()


def by_session_on_a_connection(outbox: Any, url: URL) -> None:
    engine = create_engine(url)
    with engine.begin() as connection, Session(connection) as session:
        session.execute(PAYMENTS.insert().values(what="paid"))
        outbox.add(session, Event(type=PLACED, key="k"))
    engine.dispose()


def by_asynchronous_session(outbox: Any, url: URL) -> None:
    async def pay() -> None:
        engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(PAYMENTS.insert().values(what="paid"))
            outbox.add(session, Event(type=PLACED, key="k"))
        await engine.dispose()

    asyncio.run(pay())


WAYS = [by_session, by_connection, by_session_on_a_connection, by_asynchronous_session]


def paid(url: URL) -> tuple[int, int]:
    """Return the numbers of payments and of events in a database."""
    engine = create_engine(url)
    with engine.connect() as connection:
        counts = [
            connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
            for name in ("payments", "shield_outbox")
        ]
    engine.dispose()
    return counts[0], counts[1]


@pytest.mark.parametrize("add", WAYS)
def test_an_event_in_another_database_is_refused_with_its_data(
    orders: Service, elsewhere: URL, add: Callable[[Any, URL], None]
) -> None:
    with pytest.raises(TransactionRefused, match="in which the relay of this service looks"):
        add(orders.app.outbox, elsewhere)
    assert paid(elsewhere) == (0, 0)


@pytest.mark.parametrize("add", WAYS)
def test_any_engine_of_the_relays_database_takes_events(
    orders: Service, add: Callable[[Any, URL], None]
) -> None:
    add(orders.app.outbox, orders.engine.url)
    assert paid(orders.engine.url) == (1, 1)


def test_delayed_event_is_found_only_in_the_relays_database(
    orders: Service, elsewhere: URL
) -> None:
    with orders.transaction() as session:
        event_id = orders.app.outbox.add(
            session, Event(type=PLACED, key="k"), delay=timedelta(hours=1)
        )
    engine = create_engine(elsewhere)
    with Session(engine) as session, pytest.raises(TransactionRefused, match="no relay would find"):
        orders.app.delayed.cancel(session, event_id, who="a test")
    engine.dispose()


def test_a_handlers_event_in_another_database_fails_its_attempt(
    make_service: Callable[..., Service], orders: Service, elsewhere: URL
) -> None:
    stock = make_service("stock")
    stock.app.declare("stock.reserved")
    make_topics(stock)
    engine = create_engine(elsewhere)

    @stock.app.consumer("stock").handles(PLACED)
    def reserve(_: Session, event: Event) -> None:
        with Session(engine) as other, other.begin():
            other.execute(PAYMENTS.insert().values(what="paid"))
            stock.app.outbox.add(other, Event(type="stock.reserved", key=event.key))

    with orders.transaction() as session:
        orders.app.outbox.add(session, Event(type=PLACED, key="k"))
    drain(orders.relay())
    stock.app.build_consumer("stock").run_once()
    engine.dispose()
    assert stock.inbox() == {"PROCESSING": 1}
    (reason,) = stock.rows("SELECT last_error FROM shield_inbox")
    assert "in which the relay of this service looks" in reason[0]
    assert paid(elsewhere) == (0, 0)


def test_connection_lost_meanwhile_raises_the_database_error(orders: Service) -> None:
    engine = create_engine(orders.engine.url)
    with Session(engine) as session:
        session.execute(PAYMENTS.insert().values(what="paid"))
        orders.app.outbox.add(session, Event(type=PLACED, key="k"))
        cut(session, by=orders.engine)
        with pytest.raises(DBAPIError):
            session.commit()
    engine.dispose()


def test_schema_map_set_after_an_event_was_added_is_refused(orders: Service) -> None:
    orders.execute("CREATE SCHEMA tenant")
    orders.execute("CREATE TABLE tenant.shield_outbox (LIKE public.shield_outbox INCLUDING ALL)")
    with Session(orders.engine) as session:
        orders.app.outbox.add(session, Event(type=PLACED, key="k"))
        connection: Connection = session.connection()
        connection.execution_options(schema_translate_map={None: "tenant"})
        with pytest.raises(TransactionRefused, match="schema_translate_map"):
            session.commit()
    assert orders.outbox() == {}


def test_events_are_accepted_without_access_to_relays_database(
    orders: Service, caplog: pytest.LogCaptureFixture
) -> None:
    url = orders.engine.url.set(port=1)
    settings = Settings(
        source="orders",
        database_url=url.render_as_string(hide_password=False),
        shards=SHARDS,
        relay_wakeup=False,
    )
    unreachable: Engine = create_engine(url)
    app = ShieldTx(settings, engine=unreachable)
    app.declare(PLACED)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            by_session(app.outbox, orders.engine.url)
    assert paid(orders.engine.url) == (3, 3)
    assert len(logged(caplog.records, "tables_not_compared")) == 1


def test_event_loop_does_not_wait_for_a_silent_server(
    orders: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def longest_pause(app: ShieldTx) -> float:
        pauses: list[float] = []

        async def watch() -> None:
            latest = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                pauses.append(time.monotonic() - latest)
                latest = time.monotonic()

        watching = asyncio.create_task(watch())
        engine = create_async_engine(orders.engine.url.set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session:
            app.outbox.add(session, Event(type=PLACED, key="k"))
            await session.commit()
        await engine.dispose()
        watching.cancel()
        return max(pauses)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = orders.engine.url.set(host="127.0.0.1", port=silent.getsockname()[1])
        settings = Settings(
            source="orders",
            database_url=url.render_as_string(hide_password=False),
            shards=SHARDS,
            relay_wakeup=False,
        )
        app = ShieldTx(settings)
        app.declare(PLACED)
        assert asyncio.run(longest_pause(app)) < 5
    assert orders.rows("SELECT count(*) FROM shield_outbox") == [(1,)]
    [warning] = logged(caplog.records, "tables_not_compared")
    assert "did not answer within 1.0 s" in str(warning["error"])
