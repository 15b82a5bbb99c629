"""Commits that the server refuses: the error names what to change, and neither row is kept."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from shieldtx import Event, SchemaMismatch, TransactionRefused
from shieldtx.embedded import EmbeddedPostgres
from tests.support.write_side_shop import Order, Shop

PLACED = Event(type="order.placed")


def test_two_phases_on_a_server_without_them_name_the_setting():
    with EmbeddedPostgres(settings={"max_prepared_transactions": "0"}) as server:
        shop = Shop(server.create_database("shop") or server.url("shop"))

        async def commit_later() -> None:
            url = shop.engine.url.set(drivername="postgresql+psycopg_async")
            engine = create_async_engine(url)
            async with AsyncSession(engine, twophase=True) as session:
                session.add(Order(id=2))
                shop.outbox.add(session, Event(type="order.placed"))
                try:
                    await session.commit()
                finally:
                    await session.rollback()
                    await engine.dispose()

        try:
            with shop.session(twophase=True) as session:
                session.add(Order(id=1))
                shop.outbox.add(session, PLACED)
                with pytest.raises(TransactionRefused, match="max_prepared_transactions above 0"):
                    session.commit()
            with pytest.raises(TransactionRefused, match="max_prepared_transactions above 0"):
                asyncio.run(commit_later())
            assert (shop.orders(), shop.events()) == ([], [])
        finally:
            shop.close()


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "after another event"])
def test_a_changed_search_path_is_named(postgres_shop, is_first):
    shop = postgres_shop
    if not is_first:
        with shop.session() as session, session.begin():
            shop.outbox.add(session, Event(type="order.placed", key="before"))
    with shop.session() as session:
        session.execute(insert(Order).values(id=1))
        shop.outbox.add(session, Event(type="order.placed"))
        session.execute(text("SET LOCAL search_path TO pg_catalog"))
        error = SchemaMismatch if is_first else TransactionRefused
        with pytest.raises(error, match="changed its search_path"):
            session.commit()
    assert (shop.orders(), len(shop.events())) == ([], int(not is_first))
