"""A guard fails and its error is swallowed: nothing is committed, and nothing is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from shieldtx.errors import ShieldTxError, TransactionRefused
from tests.support.service import Service, make_topics

PAID, NOTED = "orders.paid", "orders.noted"
SWALLOWED = (ShieldTxError, SQLAlchemyError)


class Caller(Enum):
    """The object by which a service makes its local transaction."""

    CONNECTION = auto()
    SESSION = auto()
    ASYNC_SESSION = auto()


class End(Enum):
    """How a service that swallowed an error ends its transaction."""

    COMMITS = auto()
    COMMITS_AGAIN = auto()
    COMMITS_ITS_CONNECTION = auto()
    ROLLS_BACK = auto()


@dataclass
class Bank:
    """A service, the ledger of its local transactions, and the errors that it has swallowed."""

    pay: Service
    ledger: Engine
    own: Engine
    """The engine by which the service opens the barrier; it keeps no connection."""
    errors: list[BaseException] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Calls that let the barrier be queried again."""

    @contextmanager
    def swallow(self) -> Iterator[None]:
        try:
            yield
        except SWALLOWED as error:
            self.errors.append(error)

    def connect(self, caller: Caller) -> Session | Connection:
        """Begin the local transaction of a synchronous caller."""
        return Session(self.ledger) if caller is Caller.SESSION else self.ledger.connect()

    def check(self) -> None:
        """Check all messages whose outcome is unknown."""
        self.pay.execute(
            "UPDATE shield_outbox SET check_at = now() - interval '1 s' WHERE status = 'HALF'"
        )
        for check_back in self.pay.app.half_messages.check_backs():
            while check_back.run_once().more:
                continue

    def sent(self) -> int:
        """Count the local transactions whose messages are sent."""
        self.check()
        rows = self.pay.rows("SELECT event_type, status FROM shield_outbox")
        assert {status for _, status in rows} <= {"INIT", "DISCARDED"}
        return rows.count((PAID, "INIT"))

    def committed(self) -> int:
        with self.ledger.connect() as connection:
            return int(connection.scalar(text("SELECT count(*) FROM entries")))


SHUT_OUT = text("INSERT INTO shield_barrier VALUES (:event_id, false, now())")

# --- why a guard fails ----------------------------------------------------------------------------


def an_error_was_swallowed(bank: Bank, local: Session | Connection) -> None:
    with suppress(DBAPIError):
        local.execute(text("SELECT 1 / 0"))


def it_has_no_right(bank: Bank, local: Session | Connection) -> None:
    with bank.ledger.begin() as connection:
        connection.execute(text("GRANT SELECT, INSERT ON entries TO pg_monitor"))
    local.execute(text("SET LOCAL ROLE pg_monitor"))


def a_lock_is_not_had_in_time(bank: Bank, local: Session | Connection) -> None:
    other = bank.ledger.connect()
    other.execute(text("LOCK TABLE shield_barrier IN EXCLUSIVE MODE"))
    local.execute(text("SET LOCAL lock_timeout = '100ms'"))
    bank.undo.append(other.close)


def a_check_came_first(bank: Bank, local: Session | Connection) -> None:
    """A check that has queried the barrier, and whose result is not recorded yet."""
    ids = bank.pay.rows("SELECT event_id FROM shield_outbox WHERE status = 'HALF'")
    with bank.ledger.begin() as connection:
        connection.execute(SHUT_OUT, [{"event_id": event_id} for (event_id,) in ids])


def nobody_may_connect(bank: Bank, local: Session | Connection) -> None:
    """Refuse connections when the guard queries the location of an engine that it does not know."""
    name = bank.ledger.url.database

    def allow(connections: bool) -> None:
        alter = f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {connections}'
        with bank.pay.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as admin:
            admin.execute(text(alter))

    local.execute(text("SELECT 1"))
    allow(connections=False)
    bank.undo.append(lambda: allow(connections=True))


def a_barrier_is_elsewhere(bank: Bank, local: Session | Connection) -> None:
    """The service has declared another barrier, for another message of the local transaction."""


Why = Callable[[Bank, Any], None]
WHY: tuple[Why, ...] = (
    an_error_was_swallowed,
    it_has_no_right,
    a_lock_is_not_had_in_time,
    a_check_came_first,
    nobody_may_connect,
    a_barrier_is_elsewhere,
)


@pytest.fixture
def bank(make_service: Callable[..., Service], ledger: Engine) -> Iterator[Bank]:
    pay = make_service("pay", half_check_timeout=5.0, barrier_patience=0.3)
    own = create_engine(ledger.url, poolclass=NullPool)
    for event_type in (PAID, NOTED):
        pay.app.declare(event_type)
    pay.app.barrier(PAID, engine=own)
    make_topics(pay)
    bank = Bank(pay, ledger, own)
    yield bank
    for undo in bank.undo:
        undo()
    own.dispose()


# --- what a service does --------------------------------------------------------------------------

Guard = Callable[[Any], None]


async def run(bank: Bank, caller: Caller, guard: Guard, why: Why, end: End) -> None:
    """Make the local transaction of a service that swallows each error."""
    if caller is Caller.ASYNC_SESSION:
        async_engine = create_async_engine(bank.ledger.url)
        try:
            async with AsyncSession(async_engine) as session:
                await session.run_sync(lambda local: why(bank, local))
                with bank.swallow():
                    guard(session)
                with bank.swallow():
                    await session.run_sync(_book)
                await _end(bank, session, end)
        finally:
            await async_engine.dispose()
        return
    engine = create_engine(bank.ledger.url)
    with Session(engine) if caller is Caller.SESSION else engine.connect() as local:
        why(bank, local)
        with bank.swallow():
            guard(local)
        with bank.swallow():
            _book(local)
        await _end(bank, local, end)
    engine.dispose()


def _book(local: Session | Connection) -> None:
    local.execute(text("INSERT INTO entries VALUES ('paid')"))


async def _end(bank: Bank, local: Any, end: End) -> None:
    if end is End.COMMITS_ITS_CONNECTION and not isinstance(local, Connection):
        local = await _awaited(local.connection())
    for _ in range(3 if end is End.COMMITS_AGAIN else 1):
        with bank.swallow():
            await _awaited(local.rollback() if end is End.ROLLS_BACK else local.commit())
    for undo in bank.undo:
        undo()
    bank.undo.clear()


async def _awaited(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


def _named(value: Any) -> str:
    return value.name if isinstance(value, Enum) else value.__name__


@pytest.mark.parametrize(("why", "caller", "end"), [*product(WHY, Caller, End)], ids=_named)
def test_failed_guard_commits_and_sends_nothing(
    bank: Bank, why: Why, caller: Caller, end: End
) -> None:
    if why is a_barrier_is_elsewhere:
        bank.pay.app.barrier(NOTED)

    async def main() -> None:
        async with bank.pay.app.half(PAID) as half:
            half.prepare(NOTED)
            await run(bank, caller, half.guard, why, end)

    with pytest.raises(TransactionRefused, match="did not commit"):
        asyncio.run(main())
    assert bank.committed() == bank.sent() == 0
    # A rolled-back AsyncSession is no longer guarded, so no guard has failed.
    assert bank.errors or (caller is Caller.ASYNC_SESSION and end is End.ROLLS_BACK)


@pytest.mark.parametrize(("why", "caller"), [*product(WHY[:-1], Caller)], ids=_named)
def test_failed_guard_by_id_commits_and_sends_nothing(bank: Bank, why: Why, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)

    def guard(local: Any) -> None:
        bank.pay.app.guard(local, event_id)

    asyncio.run(run(bank, caller, guard, why, End.COMMITS_AGAIN))
    with bank.swallow():
        bank.pay.app.half_commit(event_id)
    assert bank.committed() == bank.sent() == 0


def _refused_in_savepoints(bank: Bank, local: Session | Connection, guard: Guard) -> list[Any]:
    savepoints = [local.begin_nested(), local.begin_nested()]
    local.execute(text("SELECT 1"))
    with bank.swallow():
        guard(local)
    _book(local)
    return savepoints


@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_guard_refused_in_a_released_savepoint_refuses_commit(bank: Bank, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.connect(caller) as local:
        outer, inner = _refused_in_savepoints(
            bank, local, lambda local: bank.pay.app.guard(local, event_id)
        )
        inner.commit()
        outer.commit()
        with bank.swallow():
            local.commit()
    assert bank.committed() == bank.sent() == 0
    assert len(bank.errors) == 2


@pytest.mark.parametrize("which", ["inner", "outer"])
@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_savepoint_rollback_undoes_the_refusal_of_its_guard(
    bank: Bank, caller: Caller, which: str
) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.connect(caller) as local:
        outer, inner = _refused_in_savepoints(
            bank, local, lambda local: bank.pay.app.guard(local, event_id)
        )
        if which == "inner":
            inner.rollback()
            outer.commit()
        else:
            inner.commit()
            outer.rollback()
        local.execute(text("INSERT INTO entries VALUES ('another')"))
        local.commit()
    assert (bank.committed(), bank.sent()) == (1, 0)
    assert len(bank.errors) == 1


@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_rollback_of_another_savepoint_keeps_the_refusal(bank: Bank, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.connect(caller) as local:
        outer, inner = _refused_in_savepoints(
            bank, local, lambda local: bank.pay.app.guard(local, event_id)
        )
        inner.commit()
        outer.commit()
        local.begin_nested().rollback()
        with bank.swallow():
            local.commit()
    assert bank.committed() == bank.sent() == 0
    assert len(bank.errors) == 2


def test_rollback_of_a_session_in_a_savepoint_undoes_the_refusal(bank: Bank) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.ledger.connect() as connection:
        connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            _refused_in_savepoints(bank, session, lambda local: bank.pay.app.guard(local, event_id))
            session.rollback()
        connection.execute(text("INSERT INTO entries VALUES ('another')"))
        connection.commit()
    assert (bank.committed(), bank.sent()) == (1, 0)
    assert len(bank.errors) == 1


@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_guard_of_another_message_keeps_the_refusal(bank: Bank, caller: Caller) -> None:
    refused, guarded = bank.pay.app.half_prepare(PAID), bank.pay.app.half_prepare(PAID)
    with bank.connect(caller) as local:
        with local.begin_nested(), bank.swallow():
            bank.pay.app.guard(local, refused)
        bank.pay.app.guard(local, guarded)
        _book(local)
        with bank.swallow():
            local.commit()
    assert bank.committed() == bank.sent() == 0
    assert len(bank.errors) == 2


@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_transaction_without_guard_may_end_by_a_statement(bank: Bank, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)
    with bank.connect(caller) as local:
        savepoint = local.begin_nested()
        with bank.swallow():
            bank.pay.app.guard(local, event_id)
        savepoint.rollback()
        _book(local)
        local.execute(text("COMMIT"))
    assert (bank.committed(), bank.sent()) == (1, 0)


def test_message_is_guarded_again_after_a_lost_connection(
    bank: Bank,
) -> None:
    with bank.pay.app.half(PAID) as half:
        with Session(bank.ledger) as session:
            half.guard(session)
            session.invalidate()
        with Session(bank.ledger) as session:
            half.guard(session)
            _book(session)
            session.commit()
    assert bank.committed() == bank.sent() == 1


def test_the_release_of_a_savepoint_guards_nothing(bank: Bank) -> None:
    """A running AsyncSession enters its barrier with its commit, not before."""

    async def main() -> None:
        async_engine = create_async_engine(bank.ledger.url)
        async with bank.pay.app.half(PAID) as half, AsyncSession(async_engine) as session:
            await session.execute(text("SELECT 1"))
            half.guard(session)
            async with session.begin_nested() as outer:
                async with session.begin_nested():
                    await session.execute(text("SELECT 1"))
                await outer.rollback()
            await session.run_sync(_book)
            await session.commit()
        await async_engine.dispose()

    asyncio.run(main())
    assert bank.committed() == bank.sent() == 1


@pytest.mark.parametrize("caller", [Caller.CONNECTION, Caller.SESSION])
def test_second_try_after_a_failed_guard_is_guarded_and_sent(bank: Bank, caller: Caller) -> None:
    with bank.pay.app.half(PAID) as half, bank.connect(caller) as local:
        an_error_was_swallowed(bank, local)
        with bank.swallow():
            half.guard(local)
        local.rollback()
        half.guard(local)
        _book(local)
        local.commit()
    assert len(bank.errors) == 1
    assert bank.committed() == bank.sent() == 1


@pytest.mark.parametrize("caller", Caller)
def test_each_commit_reports_that_the_guard_failed(bank: Bank, caller: Caller) -> None:
    event_id = bank.pay.app.half_prepare(PAID)

    def guard(local: Any) -> None:
        bank.pay.app.guard(local, event_id)

    asyncio.run(run(bank, caller, guard, it_has_no_right, End.COMMITS_AGAIN))
    assert len(bank.errors) >= 3
    if caller is not Caller.CONNECTION:
        # After a failed commit of a connection, SQLAlchemy itself refuses all further calls.
        assert all(isinstance(error, TransactionRefused) for error in bank.errors[-2:])
