"""A guard is undone without its session: data commits with its message, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only

from shieldtx import Event
from shieldtx.errors import TransactionRefused
from tests.integration.half_messages.test_guards_that_fail import NOTED, PAID, Bank, bank
from tests.support.lost_connections import cut

__all__ = ["bank"]


class Caller(Enum):
    """The object by which a service makes its local transaction."""

    CONNECTION = auto()
    TWO_PHASE_CONNECTION = auto()
    """Commits without preparing, which SQLAlchemy allows."""
    SESSION = auto()
    SESSION_OF_PSYCOPG2 = auto()
    SESSION_ON_CONNECTION = auto()
    TWO_PHASE_SESSION = auto()
    ASYNC_SESSION = auto()
    ASYNC_SESSION_OF_ASYNCPG = auto()


class End(Enum):
    """How a service ends its transaction after that."""

    COMMITS = auto()
    COMMITS_ITS_CONNECTION = auto()
    SAYS_COMMIT = auto()
    """By a statement whose effect SQLAlchemy does not know."""


class Failed(Exception):
    """The error that a service raises."""


Guard = Callable[[Any], None]

# --- how a guard is undone ------------------------------------------------------------------------


def a_block_of_the_driver_fails(bank: Bank, local: Any, guard: Guard) -> None:
    local.execute(text("SELECT 1"))
    with suppress(Failed), _driver_block(local):
        with bank.swallow():
            guard(local)
        raise Failed


def a_savepoint_in_words_is_rolled_back(bank: Bank, local: Any, guard: Guard) -> None:
    local.execute(text("SAVEPOINT a"))
    guard(local)
    with bank.swallow():
        local.execute(text("ROLLBACK TO a"))


def the_driver_rolls_a_savepoint_back(bank: Bank, local: Any, guard: Guard) -> None:
    local.execute(text("SELECT 1"))
    _say(local, "SAVEPOINT a")
    guard(local)
    _say(local, "ROLLBACK TO a")


def the_driver_rolls_back(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    _say(local, "ROLLBACK")
    _say(local, "BEGIN")


def the_pools_connection_rolls_back(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    # Drivers refuse the rollback in a transaction of two phases.
    with suppress(_connection(local).dialect.dbapi.Error):
        _connection(local).connection.rollback()


def a_statement_rolls_back(bank: Bank, local: Any, guard: Guard) -> None:
    """Execute a ROLLBACK, which is refused and undoes nothing."""
    guard(local)
    with bank.swallow():
        local.execute(text("ROLLBACK"))


Undo = Callable[[Bank, Any, Guard], None]
UNDO: tuple[Undo, ...] = (
    a_block_of_the_driver_fails,
    a_savepoint_in_words_is_rolled_back,
    the_driver_rolls_a_savepoint_back,
    the_driver_rolls_back,
    the_pools_connection_rolls_back,
    a_statement_rolls_back,
)
HAS_NO_BLOCKS = {
    Caller.SESSION_OF_PSYCOPG2,
    # psycopg refuses blocks in a transaction of two phases.
    Caller.TWO_PHASE_CONNECTION,
    Caller.TWO_PHASE_SESSION,
}


def _connection(local: Session | Connection) -> Connection:
    return local if isinstance(local, Connection) else local.connection()


def _driver(local: Session | Connection) -> Any:
    return _connection(local).connection.driver_connection


def _wait(result: Any) -> Any:
    return await_only(result) if isinstance(result, Awaitable) else result


def _say(local: Session | Connection, statement: str) -> None:
    """Execute a statement directly on the driver, without SQLAlchemy."""
    driver = _driver(local)
    has_execute = hasattr(driver, "execute")
    _wait((driver if has_execute else driver.cursor()).execute(statement))


@contextmanager
def _driver_block(local: Session | Connection) -> Iterator[None]:
    block = _driver(local).transaction()
    is_async = hasattr(block, "__aenter__")
    _wait(block.__aenter__() if is_async else block.__enter__())
    leave = block.__aexit__ if is_async else block.__exit__
    try:
        yield
    except Failed as error:
        _wait(leave(Failed, error, error.__traceback__))
        raise
    _wait(leave(None, None, None))


# --- what a service does --------------------------------------------------------------------------


def run(ledger: Engine, caller: Caller, use: Callable[[Any, Callable[[], None]], None]) -> None:
    """Make a local transaction by a caller, given with its commit."""
    if caller in {Caller.ASYNC_SESSION, Caller.ASYNC_SESSION_OF_ASYNCPG}:
        asyncio.run(_run_async(ledger, caller, use))
        return
    is_psycopg2 = caller is Caller.SESSION_OF_PSYCOPG2
    url = ledger.url.set(drivername="postgresql+psycopg2") if is_psycopg2 else ledger.url
    engine = create_engine(url)
    with engine.connect() as connection:
        if caller is Caller.CONNECTION:
            use(connection, connection.commit)
        elif caller is Caller.TWO_PHASE_CONNECTION:
            use(connection, connection.begin_twophase().commit)
        elif caller is Caller.SESSION_ON_CONNECTION:
            connection.begin()
            with Session(connection) as session:
                use(session, lambda: (session.commit(), connection.commit())[0])
        else:
            with Session(engine, twophase=caller is Caller.TWO_PHASE_SESSION) as session:
                use(session, session.commit)
    engine.dispose()


async def _run_async(ledger: Engine, caller: Caller, use: Any) -> None:
    is_asyncpg = caller is Caller.ASYNC_SESSION_OF_ASYNCPG
    url = ledger.url.set(drivername="postgresql+asyncpg") if is_asyncpg else ledger.url
    engine = create_async_engine(url)
    try:
        async with AsyncSession(engine) as session:
            await session.run_sync(lambda local: use(local, local.commit))
    finally:
        await engine.dispose()


def _book(local: Session | Connection) -> None:
    local.execute(text("INSERT INTO entries VALUES ('paid')"))


def _end(local: Any, end: End, commit: Callable[[], None]) -> None:
    if end is End.SAYS_COMMIT:
        local.execute(text("COMMIT"))
    elif end is End.COMMITS_ITS_CONNECTION:
        _connection(local).commit()
    else:
        commit()


def _named(value: Any) -> str:
    return value.name if isinstance(value, Enum) else value.__name__


CASES = [
    case
    for case in product(UNDO, Caller, End)
    if not (case[0] is a_block_of_the_driver_fails and case[1] in HAS_NO_BLOCKS)
]


@pytest.mark.parametrize(("undo", "caller", "end"), CASES, ids=_named)
def test_transaction_that_lost_its_guard_is_not_committed(
    bank: Bank, undo: Undo, caller: Caller, end: End
) -> None:
    for is_by_hand in (True, False):
        bank.errors.clear()
        if is_by_hand:
            event_id = bank.pay.app.half_prepare(PAID)
            _use(bank, undo, caller, end, lambda local, i=event_id: bank.pay.app.guard(local, i))
        else:
            with bank.swallow(), bank.pay.app.half(PAID) as half:
                _use(bank, undo, caller, end, half.guard)
        assert bank.sent() == bank.committed()
        has_no_rollback = undo is the_pools_connection_rolls_back and "TWO_PHASE" in caller.name
        if not has_no_rollback:
            assert any(isinstance(error, TransactionRefused) for error in bank.errors)
            assert bank.committed() == 0 or undo is a_statement_rolls_back


def _use(bank: Bank, undo: Undo, caller: Caller, end: End, guard: Guard) -> None:
    def use(local: Any, commit: Callable[[], None]) -> None:
        undo(bank, local, guard)
        _book(local)
        with bank.swallow():
            _end(local, end, commit)
        # Nothing of a refused transaction remains to commit.
        with bank.swallow():
            commit()

    run(bank.ledger, caller, use)


# --- what keeps the guard -------------------------------------------------------------------------


def a_savepoint_in_words_is_released(bank: Bank, local: Any, guard: Guard) -> None:
    local.execute(text("SAVEPOINT a"))
    guard(local)
    local.execute(text("RELEASE a"))


def a_later_savepoint_is_rolled_back(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    local.execute(text("SAVEPOINT a"))
    _book(local)
    local.execute(text("ROLLBACK TO SAVEPOINT a"))


def a_later_block_of_the_driver_fails(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    with suppress(Failed), _driver_block(local):
        _book(local)
        raise Failed


def it_has_another_role_then(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    local.execute(text("GRANT INSERT ON entries TO pg_monitor"))
    local.execute(text("SET LOCAL ROLE pg_monitor"))


def it_looks_elsewhere_then(bank: Bank, local: Any, guard: Guard) -> None:
    guard(local)
    local.execute(text("CREATE SCHEMA elsewhere"))
    local.execute(text("CREATE TABLE elsewhere.shield_barrier (LIKE shield_barrier)"))
    local.execute(text("CREATE TABLE elsewhere.entries (LIKE entries)"))
    local.execute(text("INSERT INTO public.entries VALUES ('paid')"))
    local.execute(text("SET LOCAL search_path TO elsewhere"))


HARMLESS: tuple[Undo, ...] = (
    a_savepoint_in_words_is_released,
    a_later_savepoint_is_rolled_back,
    a_later_block_of_the_driver_fails,
    it_has_another_role_then,
    it_looks_elsewhere_then,
)


@pytest.mark.parametrize(
    ("harmless", "caller"),
    [
        case
        for case in product(HARMLESS, Caller)
        if not (case[0] is a_later_block_of_the_driver_fails and case[1] in HAS_NO_BLOCKS)
    ],
    ids=_named,
)
def test_transaction_that_keeps_its_guard_is_committed(
    bank: Bank, harmless: Undo, caller: Caller
) -> None:
    with bank.pay.app.half(PAID) as half:

        def use(local: Any, commit: Callable[[], None]) -> None:
            harmless(bank, local, half.guard)
            _book(local)
            commit()

        run(bank.ledger, caller, use)
    assert bank.committed() == bank.sent() == 1


@pytest.mark.parametrize("is_undone", [False, True])
def test_guard_of_each_message_of_a_transaction_is_checked(bank: Bank, is_undone: bool) -> None:
    first, second = bank.pay.app.half_prepare(PAID), bank.pay.app.half_prepare(PAID)
    with Session(bank.ledger) as session, bank.swallow():
        bank.pay.app.guard(session, first)
        session.execute(text("SAVEPOINT a"))
        bank.pay.app.guard(session, second)
        if is_undone:
            session.execute(text("ROLLBACK TO a"))
        _book(session)
        session.commit()
    assert (bank.committed(), bank.sent()) == ((0, 0) if is_undone else (1, 2))


def test_rows_committed_by_driver_are_sent_the_rest_is_refused(bank: Bank) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with Session(bank.ledger) as session:
        bank.pay.app.guard(session, event_id)
        _book(session)
        _driver(session).commit()
        _book(session)
        with pytest.raises(TransactionRefused, match="not in this transaction any more"):
            session.commit()
    assert bank.committed() == bank.sent() == 1


def test_refused_preparation_leaves_no_prepared_transaction(bank: Bank) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.ledger.connect() as connection:
        two_phases = connection.begin_twophase()
        a_savepoint_in_words_is_rolled_back(
            bank, connection, lambda local: bank.pay.app.guard(local, event_id)
        )
        _book(connection)
        for step in (two_phases.prepare, two_phases.commit):
            with pytest.raises(TransactionRefused, match="not in this transaction any more"):
                step()
    with bank.ledger.begin() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_xacts")) == 0
    assert bank.committed() == bank.sent() == 0


def test_waiting_async_session_refuses_a_commit_statement(bank: Bank) -> None:
    """The statement would commit before the guard."""

    async def main() -> None:
        engine = create_async_engine(bank.ledger.url)
        async with bank.pay.app.half(PAID) as half, AsyncSession(engine) as session:
            await session.execute(text("SELECT 1"))
            half.guard(session)
            await session.run_sync(_book)
            with pytest.raises(TransactionRefused, match="'COMMIT' would end"):
                await session.execute(text("COMMIT"))
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert bank.committed() == bank.sent() == 1


def test_commit_in_a_pipeline_is_refused(bank: Bank) -> None:
    with bank.swallow(), bank.pay.app.half(PAID) as half, Session(bank.ledger) as session:
        half.guard(session)
        _book(session)
        with _driver(session).pipeline(), pytest.raises(TransactionRefused, match="pipeline"):
            session.commit()
    assert bank.committed() == bank.sent() == 0


def test_commit_of_a_failed_transaction_commits_nothing(bank: Bank) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.ledger.connect() as connection:
        bank.pay.app.guard(connection, event_id)
        _book(connection)
        with bank.swallow():
            connection.execute(text("SELECT 1 / 0"))
        connection.commit()
    assert bank.committed() == bank.sent() == 0


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
@pytest.mark.parametrize("by_session", [False, True])
def test_a_connection_is_free_after_its_guarded_transaction(
    bank: Bank, by_session: bool, ends_by: str
) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.ledger.connect() as connection:
        local: Any = Session(connection) if by_session else connection
        bank.pay.app.guard(local, event_id)
        _book(local)
        getattr(local, ends_by)()
        _book(connection)
        connection.commit()
    commits = ends_by == "commit"
    assert (bank.committed(), bank.sent()) == (1 + commits, int(commits))


def test_asyncpg_may_prepare_its_transaction_by_statements(bank: Bank) -> None:
    """SQLAlchemy has no other way there, and its statements end no transaction without an event."""

    async def main() -> None:
        engine = create_async_engine(bank.ledger.url.set(drivername="postgresql+asyncpg"))
        async with bank.pay.app.half(PAID) as half, AsyncSession(engine, twophase=True) as session:
            half.guard(session)
            await session.run_sync(_book)
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert bank.committed() == bank.sent() == 1


CUT = pytest.mark.parametrize(
    "caller", [Caller.CONNECTION, Caller.SESSION, Caller.TWO_PHASE_CONNECTION]
)


@CUT
def test_message_is_guarded_again_after_a_commit_that_was_cut(bank: Bank, caller: Caller) -> None:
    with bank.pay.app.half(PAID) as half:

        def be_cut(local: Any, commit: Callable[[], None]) -> None:
            half.guard(local)
            _book(local)
            cut(local, by=bank.own)
            with pytest.raises(DBAPIError) as failed:
                commit()
            assert failed.value.connection_invalidated

        run(bank.ledger, caller, be_cut)
        with Session(bank.ledger) as session:
            half.guard(session)
            _book(session)
            session.commit()
    assert bank.committed() == bank.sent() == 1


@CUT
def test_commit_on_a_cut_connection_with_swallowed_error_raises(bank: Bank, caller: Caller) -> None:
    def be_cut(half: Any) -> None:
        def use(local: Any, commit: Callable[[], None]) -> None:
            half.guard(local)
            cut(local, by=bank.own)
            with bank.swallow():
                commit()

        run(bank.ledger, caller, use)

    with pytest.raises(TransactionRefused, match="did not commit"), bank.pay.app.half(PAID) as half:
        be_cut(half)
    assert len(bank.errors) == 1
    assert bank.sent() == 0


@pytest.mark.parametrize("is_guarded_again", [False, True])
def test_rolled_back_savepoint_session_may_be_guarded_again(
    bank: Bank, is_guarded_again: bool
) -> None:
    with bank.swallow(), bank.pay.app.half(PAID) as half, bank.ledger.connect() as connection:
        connection.begin()
        for is_kept in (False, True):
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                if is_guarded_again or not is_kept:
                    half.guard(session)
                _book(session)
                (session.commit if is_kept else session.rollback)()
        connection.commit()
    assert (bank.committed(), bank.sent()) == (1, int(is_guarded_again))
    assert bool(bank.errors) is not is_guarded_again


def test_guard_ends_with_a_commit_that_the_outbox_refused(bank: Bank) -> None:
    """The outbox checks that commit first, so the barrier is not called for it."""
    bank.pay.app.barrier(NOTED)

    def be_refused(half: Any) -> None:
        with Session(bank.pay.engine) as session:
            half.guard(session)
            bank.pay.app.outbox.add(session, Event(type=PAID))
            _driver(session).rollback()
            with bank.swallow():
                session.connection().commit()

    with pytest.raises(TransactionRefused, match="did not commit"), bank.pay.app.half(NOTED) as it:
        be_refused(it)
    assert len(bank.errors) == 1


@pytest.mark.parametrize("by_session", [False, True])
def test_connection_is_free_after_a_refused_commit(bank: Bank, by_session: bool) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.ledger.connect() as connection:
        local: Any = Session(connection) if by_session else connection
        bank.pay.app.guard(local, event_id)
        _say(local, "ROLLBACK")
        _say(local, "BEGIN")
        with bank.swallow():
            connection.commit()
        local.rollback()
        _book(connection)
        connection.commit()
    assert (bank.committed(), bank.sent()) == (1, 0)
    assert len(bank.errors) == 1
