"""The write side on an AsyncSession, which reaches its database only when it is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from shieldtx import Event, EventRefused
from shieldtx.errors import TransactionRefused
from shieldtx.outbox.publish_decorator import Publication, publish_decorator
from tests.support.write_side_shop import Order, Shop


def placed(key: str = "a", **fields) -> Event:
    return Event(type="order.placed", key=key, **fields)


def run(shop: Shop, work: Callable[[AsyncEngine], Awaitable[None]], **options) -> None:
    """Run a coroutine function with an asynchronous engine on the shop's database."""

    async def main() -> None:
        engine = create_async_engine(shop.engine.url, **options)
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


@asynccontextmanager
async def undone(session: AsyncSession) -> AsyncIterator[None]:
    savepoint = await session.begin_nested()
    yield
    await savepoint.rollback()


def test_commit_makes_data_and_event_visible_rollback_neither(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            shop.outbox.add(session, placed("kept"))
            session.add(Order(id=1))
        async with AsyncSession(engine) as session:
            session.add(Order(id=2))
            shop.outbox.add(session, placed("gone"))
            await session.flush()
            await session.rollback()
        async with AsyncSession(engine) as session:
            await session.execute(insert(Order).values(id=3))
            shop.outbox.add(session, placed("closed"))
        async with AsyncSession(engine) as session:
            shop.outbox.add(session, placed("alone"))
            await session.commit()

    run(shop, work)
    assert (shop.orders(), shop.events()) == ([1], ["kept", "alone"])
    assert shop.hints == 2


def test_savepoints_take_their_events_with_them(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            shop.outbox.add(session, placed("1"))
            async with undone(session):
                # No statement ran yet, so the savepoint does not exist in the database.
                shop.outbox.add(session, placed("gone"))
            async with undone(session):
                session.add(Order(id=2))
                await session.flush()
                shop.outbox.add(session, placed("gone too"))
                async with session.begin_nested():
                    shop.outbox.add(session, placed("gone with the outer one"))
            async with session.begin_nested():
                shop.outbox.add(session, placed("3"))
            session.add(Order(id=1))

    run(shop, work)
    assert (shop.orders(), shop.events()) == ([1], ["1", "3"])


@pytest.mark.parametrize("alone", [True, False])
def test_commit_releases_an_open_savepoint_with_its_events(postgres_shop, alone):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            if not alone:
                session.add(Order(id=1))
                await session.flush()
            await session.begin_nested()
            shop.outbox.add(session, placed())

    run(shop, work)
    assert shop.events() == ["a"]


@pytest.mark.parametrize("begun", [True, False])
def test_engine_in_autocommit_is_refused_before_any_write(postgres_shop, begun):
    shop = postgres_shop

    async def add_and_commit(session: AsyncSession) -> None:
        shop.outbox.add(session, placed())
        await session.commit()

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            if begun:
                await session.connection()
            session.add(Order(id=1))
            with pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
                await add_and_commit(session)
            await session.rollback()

    run(shop, work, isolation_level="AUTOCOMMIT")
    assert (shop.orders(), shop.events()) == ([], [])


def test_session_takes_events_in_consecutive_transactions(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine, autobegin=False) as session:
            with pytest.raises(TransactionRefused, match=r"call session\.begin"):
                shop.outbox.add(session, placed("early"))
            async with session.begin():
                shop.outbox.add(session, placed("begun"))
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        for name, ending in [("a", "commit"), ("b", "rollback"), ("c", "close"), ("d", "commit")]:
            shop.outbox.add(scoped, placed(name))
            await getattr(scoped, ending)()
        await scoped.remove()

    run(shop, work)
    assert shop.events() == ["begun", "a", "d"]


def test_a_used_business_key_ends_the_commit_with_its_name(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session:
            shop.outbox.add(session, placed(biz_key="order-1"))
            await session.commit()
            session.add(Order(id=1))
            shop.outbox.add(session, placed(biz_key="order-1"))
            with pytest.raises(EventRefused, match="order-1") as caught:
                await session.commit()
            assert caught.value.field == "biz_key"
            await session.rollback()

    run(shop, work)
    assert (shop.orders(), shop.events()) == ([], ["a"])


def test_session_on_a_connection_needs_a_join_transaction_mode(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with engine.connect() as connection:
            await connection.begin()
            async with AsyncSession(bind=connection) as session:
                with pytest.raises(TransactionRefused, match="create_savepoint"):
                    shop.outbox.add(session, placed("refused"))
            async with AsyncSession(
                bind=connection, join_transaction_mode="create_savepoint"
            ) as session:
                shop.outbox.add(session, placed("kept"))
                session.add(Order(id=1))
                await session.commit()
                shop.outbox.add(session, placed("closed"))
                session.add(Order(id=2))
                await session.flush()
            await connection.commit()

    run(shop, work)
    assert (shop.orders(), shop.events()) == ([1], ["kept"])


def test_cancelling_goes_through_run_sync(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            event_id = shop.outbox.add(session, placed(), delay=timedelta(hours=1))
            with pytest.raises(TransactionRefused, match=r"session.run_sync\(outbox.cancel"):
                shop.outbox.cancel(session, event_id)
            assert await session.run_sync(shop.outbox.cancel, event_id)

    run(shop, work)
    assert [row["status"] for row in shop.rows()] == ["DISCARDED"]


def test_an_asynchronous_connection_is_refused_with_a_way_out(postgres_shop):
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async with engine.begin() as connection:
            with pytest.raises(TransactionRefused, match=r"connection\.run_sync"):
                shop.outbox.add(connection, placed("refused"))
            await connection.run_sync(shop.outbox.add, placed("kept"))

    run(shop, work)
    assert shop.events() == ["kept"]


def test_a_coroutine_method_publishes_what_it_returns(postgres_shop):
    shop = postgres_shop

    @publish_decorator(lambda: shop.outbox, Publication(event_type="order.placed", key="id"))
    async def place(session: AsyncSession, number: int) -> dict[str, int]:
        session.add(Order(id=number))
        await session.flush()
        if number == 2:
            raise ValueError(number)
        if number == 3:
            await session.commit()
        return {"id": number}

    async def work(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, session.begin():
            assert await place(session, 1) == {"id": 1}
        async with AsyncSession(engine) as session:
            with pytest.raises(ValueError, match="2"):
                await place(session, 2)
            await session.rollback()
            with pytest.raises(TransactionRefused, match="ended the transaction"):
                await place(session, 3)

    run(shop, work)
    assert shop.events() == ["1"]


def test_tasks_get_the_ids_of_the_events_of_their_own_sessions(postgres_shop):
    shop = postgres_shop
    collected = {}

    @publish_decorator(lambda: shop.outbox, Publication(event_type="order.placed", key="id"))
    async def place(session: AsyncSession, number: int) -> dict[str, int]:
        await session.execute(insert(Order).values(id=number))
        return {"id": number}

    async def serve(engine: AsyncEngine, number: int) -> None:
        async with AsyncSession(engine) as session, session.begin():
            with shop.outbox.added_ids(session) as ids:
                await place(session, number)
                await place(session, number + 10)
            collected[number] = ids

    async def work(engine: AsyncEngine) -> None:
        await asyncio.gather(*(serve(engine, number) for number in (1, 2, 3)))

    run(shop, work)
    written = {row["key"]: row["event_id"] for row in shop.rows()}
    assert collected == {n: [written[str(n)], written[str(n + 10)]] for n in (1, 2, 3)}
