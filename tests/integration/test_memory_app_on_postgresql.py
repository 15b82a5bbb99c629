"""The testing kit on PostgreSQL: coroutine handlers, and a clock that cannot move."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from shieldtx import ConfigurationError, Event, InboxStatus, ShieldTx
from shieldtx.testing import memory_app
from tests.support.migrated_databases import MigratedDatabases


def test_coroutines_run_on_postgresql(databases: MigratedDatabases) -> None:
    shield = ShieldTx()

    @shield.publishes("orders.placed")
    async def place(session: AsyncSession, number: int) -> dict[str, int]:
        await session.execute(text("SELECT 1"))
        return {"id": number}

    @shield.consumer("stock").handles("orders.placed")
    async def reserve(session: AsyncSession, event: Event) -> None:
        values = {"id": event.payload["id"]}
        await session.execute(text("INSERT INTO reserved VALUES (:id)"), values)

    async def scenario() -> None:
        async with AsyncSession(async_engine) as session, session.begin():
            await place(session, 1)
        await asyncio.to_thread(app.drain)

    with databases.database(shards=4) as url:
        engine, async_engine = create_engine(url), create_async_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE reserved (id integer)"))
        with memory_app(shield, engine=engine, async_engine=async_engine) as app:
            asyncio.run(scenario())
            [event] = app.published("orders.placed")
            assert app.state_of(event).inbox == {"stock": InboxStatus.PROCESSED}
            with app.session() as session:
                assert session.scalars(text("SELECT id FROM reserved")).all() == [1]
            with pytest.raises(ConfigurationError, match="the clock cannot move"):
                app.advance(timedelta(days=1))
        engine.dispose()
    assert not shield.is_wired
