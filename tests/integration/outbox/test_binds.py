"""Sessions on a Connection, or with a choice of databases: an event is where its data is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    Delete,
    Engine,
    Insert,
    Update,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx.errors import TransactionRefused
from tests.support.orders import Base, Order, counts, placed, shop
from tests.support.service import Service

__all__ = ["shop"]


@pytest.fixture
def replica(database_url: str) -> Iterator[Engine]:
    """Another database, with the tables of the service, without the tables of shieldtx."""
    engine = create_engine(database_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


class Bound(Session):
    """A session that finds its connection by itself, as the scoped fixtures of a host application
    do.
    """

    def __init__(self, connection: Connection, **options: Any) -> None:
        super().__init__(**options)
        self._connection = connection

    def get_bind(self, *_: Any, **__: Any) -> Connection:
        return self._connection


def bound(connection: Connection, mode: str) -> Session:
    return Bound(connection, join_transaction_mode=mode)


def made_on(connection: Connection, mode: str) -> Session:
    return Session(bind=connection, join_transaction_mode=mode)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("mode", ["create_savepoint", "conditional_savepoint", "rollback_only"])
@pytest.mark.parametrize("make", [made_on, bound])
def test_events_of_a_session_follow_the_connections_transaction(
    shop: Service, make: Callable[..., Session], mode: str, keeps: bool
) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        with make(connection, mode) as session:
            session.add(Order(id=1))
            shop.app.outbox.add(session, placed())
            session.commit()
        seen = connection.scalar(text("SELECT count(*) FROM shield_outbox"))
        connection.commit() if keeps else connection.rollback()

    assert seen == 1
    assert counts(shop) == ((1, 1) if keeps else (0, 0))


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully", "rollback_only"])
@pytest.mark.parametrize("make", [made_on, bound])
@pytest.mark.parametrize("flushed", [True, False])
def test_connection_commit_without_its_session_keeps_the_events(
    shop: Service, make: Callable[..., Session], mode: str, flushed: bool
) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        session = make(connection, mode)
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        if flushed:
            session.flush()
        connection.commit()

    assert counts(shop) == (1, 1)


class AsyncBound(Session):
    """The session inside an AsyncSession; only `get_bind` determines its connection."""

    connection_to_use: AsyncConnection

    def get_bind(self, *_: Any, **__: Any) -> Connection:
        assert self.connection_to_use.sync_connection is not None
        return self.connection_to_use.sync_connection


def async_made_on(connection: AsyncConnection, mode: Any) -> AsyncSession:
    return AsyncSession(bind=connection, join_transaction_mode=mode)


def async_bound(connection: AsyncConnection, mode: Any) -> AsyncSession:
    session = AsyncSession(sync_session_class=AsyncBound, join_transaction_mode=mode)
    session.sync_session.connection_to_use = connection  # type: ignore[attr-defined]
    return session


def run_async(shop: Service, work: Callable[[AsyncConnection], Any]) -> None:
    async def connected() -> None:
        engine = create_async_engine(shop.engine.url)
        async with engine.connect() as connection:
            await work(connection)
        await engine.dispose()

    asyncio.run(connected())


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully"])
@pytest.mark.parametrize("make", [async_made_on, async_bound])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("flushed", [True, False])
def test_async_connection_commit_without_session_keeps_events(
    shop: Service, make: Callable[..., AsyncSession], mode: str, first: bool, flushed: bool
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.begin()
        if not first:
            async with make(connection, "create_savepoint") as session:
                session.add(Order(id=1))
                shop.app.outbox.add(session, placed())
                await session.commit()
        session = make(connection, mode)
        session.add(Order(id=2))
        shop.app.outbox.add(session, placed())
        if flushed:
            await session.flush()
        await connection.commit()

    run_async(shop, work)
    # A session that has not begun on its connection has written neither data nor events there.
    assert counts(shop) == (flushed + (not first),) * 2


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully"])
@pytest.mark.parametrize("make", [async_made_on, async_bound])
def test_rolled_back_asynchronous_session_keeps_no_event(
    shop: Service, make: Callable[..., AsyncSession], mode: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.begin()
        session = make(connection, mode)
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        await session.flush()
        await session.rollback()
        await connection.commit()

    run_async(shop, work)
    assert counts(shop) == (0, 0)


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only"])
@pytest.mark.parametrize("make", [async_made_on, async_bound])
def test_async_session_without_a_commit_of_its_own_is_refused(
    shop: Service, make: Callable[..., AsyncSession], mode: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.begin()
        with pytest.raises(TransactionRefused, match="join_transaction_mode='create_savepoint'"):
            shop.app.outbox.add(make(connection, mode), placed())
        await connection.rollback()

    run_async(shop, work)
    assert counts(shop) == (0, 0)


MODES = ["conditional_savepoint", "create_savepoint", "control_fully", "rollback_only"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [async_made_on, async_bound])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_async_session_on_an_idle_connection_takes_events(
    shop: Service, make: Callable[..., AsyncSession], mode: str, first: bool, end: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        session = make(connection, mode)
        if first:
            await session.execute(text("SELECT 1"))
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        await session.flush()
        await getattr(session, end)()
        await session.close()
        if connection.in_transaction():
            await connection.commit()

    run_async(shop, work)
    assert counts(shop) == ((1, 1) if end == "commit" else (0, 0))


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint"])
@pytest.mark.parametrize("make", [async_made_on, async_bound])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_async_session_in_a_connections_savepoint_takes_events(
    shop: Service, make: Callable[..., AsyncSession], mode: str, first: bool, end: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.begin()
        await connection.begin_nested()
        session = make(connection, mode)
        if first:
            await session.execute(text("SELECT 1"))
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        await session.flush()
        await getattr(session, end)()
        await session.close()
        await connection.commit()

    run_async(shop, work)
    assert counts(shop) == ((1, 1) if end == "commit" else (0, 0))


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only"])
@pytest.mark.parametrize("make", [async_made_on, async_bound])
def test_connection_that_begins_after_the_event_is_refused(
    shop: Service, make: Callable[..., AsyncSession], mode: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        session = make(connection, mode)
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        await connection.begin()
        with pytest.raises(TransactionRefused, match="join_transaction_mode='create_savepoint'"):
            await session.flush()
        await session.close()
        await connection.commit()

    run_async(shop, work)
    assert counts(shop) == (0, 0)


@pytest.mark.parametrize("mode", ["create_savepoint", "control_fully"])
@pytest.mark.parametrize("name", ["before_commit", "after_flush_postexec"])
def test_event_added_during_a_savepoint_release_is_written(
    shop: Service, mode: str, name: str
) -> None:
    async def work(connection: AsyncConnection) -> None:
        await connection.begin()
        await connection.begin_nested()
        session = async_made_on(connection, mode)

        @event.listens_for(session.sync_session, name, once=True)
        def add(*_: Any) -> None:
            shop.app.outbox.add(session, placed())

        session.add(Order(id=1))
        await session.commit()
        await session.close()
        await connection.commit()

    run_async(shop, work)
    assert counts(shop) == (1, 1)


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [made_on, bound])
def test_session_closed_without_commit_leaves_both_or_neither(
    shop: Service, make: Callable[..., Session], mode: str, flushed: bool
) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        with make(connection, mode) as session:
            session.add(Order(id=1))
            if flushed:
                session.flush()
            shop.app.outbox.add(session, placed())
        connection.commit()

    is_left = mode in {"conditional_savepoint", "rollback_only"}
    assert counts(shop) == ((1, 1) if is_left else (0, 0))


def routing(shop: Service, replica: Engine) -> Session:
    """Return a session that reads from a replica, by the recipe of SQLAlchemy's documentation."""

    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **__: Any) -> Engine:
            is_write = self._flushing or isinstance(clause, (Update, Delete))
            return shop.engine if is_write else replica

    return Routing()


def test_session_that_reads_a_replica_writes_events_with_data(
    shop: Service, replica: Engine
) -> None:
    with routing(shop, replica) as session:
        assert session.scalars(select(Order)).all() == []
        shop.app.outbox.add(session, placed())
        session.add(Order(id=1))
        session.commit()

    assert counts(shop) == (1, 1)


def test_session_that_routes_by_insert_writes_events_with_data(
    shop: Service, replica: Engine
) -> None:
    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **__: Any) -> Engine:
            return shop.engine if self._flushing or isinstance(clause, Insert) else replica

    with Routing() as session:
        assert session.scalars(select(Order)).all() == []
        shop.app.outbox.add(session, placed())
        session.add(Order(id=1))
        session.commit()

    assert counts(shop) == (1, 1)


def test_failed_query_of_a_replica_is_named_at_the_commit(shop: Service, replica: Engine) -> None:
    with routing(shop, replica) as session:
        with pytest.raises(DBAPIError):
            session.execute(text("SELECT * FROM nowhere"))
        session.add(Order(id=1))
        shop.app.outbox.add(session, placed())
        with pytest.raises(TransactionRefused, match="a statement failed over another connection"):
            session.commit()

    assert counts(shop) == (0, 0)


def test_a_method_that_publishes_chooses_its_isolation_level(shop: Service) -> None:
    @shop.app.publishes("orders.placed")
    def place(session: Session) -> dict[str, str]:
        session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
        level = session.scalar(text("SHOW transaction_isolation"))
        session.add(Order(id=1))
        return {"level": str(level)}

    with Session(shop.engine) as session:
        assert place(session) == {"level": "serializable"}
        session.commit()

    assert counts(shop) == (1, 1)


def test_method_in_autocommit_is_refused_before_any_statement(shop: Service) -> None:
    @shop.app.publishes("orders.placed")
    def place(session: Session) -> dict[str, str]:
        session.execute(text("INSERT INTO orders (id) VALUES (1)"))
        return {}

    engine = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
        place(session)

    assert counts(shop) == (0, 0)
