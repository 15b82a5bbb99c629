"""A guard that is undone without its session: nothing is committed that no message tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx.errors import TransactionRefused
from tests.integration.half_messages.test_guards_that_fail import PAID, Bank, Caller, bank

__all__ = ["bank"]

Local = Session | Connection
Guard = Callable[[Local], None]
Way = Callable[[Local, Guard], None]


def book(local: Local) -> None:
    local.execute(text("INSERT INTO entries VALUES ('paid')"))


def connection_of(local: Local) -> Any:
    """The driver's connection, by its pool."""
    return (local if isinstance(local, Connection) else local.connection()).connection


def to_a_savepoint(local: Local, guard: Guard) -> None:
    local.execute(text("SAVEPOINT mine"))
    guard(local)
    local.execute(text("SELECT 1"))
    local.execute(text("ROLLBACK TO mine"))


def to_a_savepoint_among_other_statements(local: Local, guard: Guard) -> None:
    local.execute(text("SELECT 1; SAVEPOINT mine"))
    guard(local)
    local.execute(text("SELECT 1"))
    local.execute(text("SELECT 1; ROLLBACK TO mine"))


def to_a_savepoint_of_a_cursor(local: Local, guard: Guard) -> None:
    connection_of(local).cursor().execute("SAVEPOINT mine")
    guard(local)
    connection_of(local).cursor().execute("ROLLBACK TO mine")


def in_a_block(local: Local, guard: Guard) -> None:
    local.execute(text("SELECT 1"))
    with suppress(TransactionRefused), connection_of(local).driver_connection.transaction():
        guard(local)


def by_the_driver(local: Local, guard: Guard) -> None:
    guard(local)
    book(local)
    connection_of(local).driver_connection.rollback()


def by_the_pools_connection(local: Local, guard: Guard) -> None:
    guard(local)
    connection_of(local).rollback()


def by_a_statement(local: Local, guard: Guard) -> None:
    guard(local)
    local.execute(text("SELECT 1"))
    with suppress(TransactionRefused):
        local.execute(text("SELECT 1; ROLLBACK; BEGIN"))
    raise TransactionRefused


BY_STATEMENTS: tuple[Way, ...] = (to_a_savepoint, to_a_savepoint_among_other_statements)
BY_THE_DRIVER: tuple[Way, ...] = (
    to_a_savepoint_of_a_cursor,
    in_a_block,
    by_the_driver,
    by_the_pools_connection,
    by_a_statement,
)


def run(bank: Bank, caller: Caller, way: Way, guard: Callable[[Any], None]) -> None:
    """Undo the guard of a local transaction, go on, and commit."""
    if caller is Caller.ASYNC_SESSION:
        asyncio.run(run_asynchronously(bank, way, guard))
        return
    engine = create_engine(bank.ledger.url)
    with Session(engine) if caller is Caller.SESSION else engine.connect() as local:
        way(local, guard)
        book(local)
        try:
            local.commit()
        except TransactionRefused:
            # Whoever swallows that and commits again, has not more.
            with suppress(TransactionRefused, SQLAlchemyError):
                local.commit()
            with suppress(TransactionRefused, SQLAlchemyError):
                book(local)
                local.commit()
            raise
    engine.dispose()


async def run_asynchronously(bank: Bank, way: Way, guard: Callable[[Any], None]) -> None:
    engine = create_async_engine(bank.ledger.url)
    async with AsyncSession(engine) as session:
        await session.run_sync(lambda local: way(local, lambda _: guard(session)))
        await session.run_sync(book)
        await session.commit()
    await engine.dispose()


CASES = [*product((*BY_STATEMENTS, *BY_THE_DRIVER), [Caller.CONNECTION, Caller.SESSION])]


@pytest.mark.parametrize("way", BY_STATEMENTS)
def test_an_asynchronous_session_that_has_begun_enters_with_its_commit(
    bank: Bank, way: Way
) -> None:
    with bank.pay.app.half(PAID) as half:
        run(bank, Caller.ASYNC_SESSION, way, half.guard)
    assert bank.committed() == bank.sent() == 1


def test_what_undoes_the_guard_of_an_asynchronous_session_refuses_the_commit(bank: Bank) -> None:
    async def pay(event_id: UUID) -> None:
        engine = create_async_engine(bank.ledger.url)
        async with AsyncSession(engine) as session:
            bank.pay.app.guard(session, event_id)
            await session.execute(text("SELECT 1"))
            driver: Any = (
                await (await session.connection()).get_raw_connection()
            ).driver_connection
            await driver.rollback()
            await session.run_sync(book)
            with pytest.raises(TransactionRefused, match="not in this transaction any more"):
                await session.commit()
        await engine.dispose()

    asyncio.run(pay(bank.pay.app.half_prepare(PAID)))
    assert bank.committed() == bank.sent() == 0


@pytest.mark.parametrize(("way", "caller"), CASES)
def test_what_undoes_a_guard_refuses_the_commit(bank: Bank, way: Way, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with pytest.raises(TransactionRefused):
        run(bank, caller, way, lambda local: bank.pay.app.guard(local, event_id))
    assert bank.committed() == bank.sent() == 0


@pytest.mark.parametrize(("way", "caller"), CASES)
def test_so_it_is_in_a_block_of_the_message(bank: Bank, way: Way, caller: Caller) -> None:
    with pytest.raises(TransactionRefused), bank.pay.app.half(PAID) as half:
        run(bank, caller, way, half.guard)
    assert bank.committed() == bank.sent() == 0


def undone_behind_the_guard(local: Local, guard: Guard) -> None:
    guard(local)
    local.execute(text("SAVEPOINT mine"))
    book(local)
    local.execute(text("ROLLBACK TO mine"))


def released(local: Local, guard: Guard) -> None:
    local.execute(text("SAVEPOINT mine"))
    guard(local)
    local.execute(text("RELEASE mine"))


@pytest.mark.parametrize(("way", "caller"), [*product([undone_behind_the_guard, released], Caller)])
def test_what_leaves_the_guard_is_committed_and_sent(bank: Bank, way: Way, caller: Caller) -> None:
    with bank.pay.app.half(PAID) as half:
        run(bank, caller, way, half.guard)
    assert bank.committed() == bank.sent() == 1
