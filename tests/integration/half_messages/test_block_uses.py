"""For each local transaction that committed, one message is sent, however a block is used.

A use is refused before the local transaction has changed anything, if it is ambiguous or if no
check could find its outcome.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shieldtx.errors import ShieldTxError, TransactionRefused, UnknownEventType
from shieldtx.half_messages.block import HalfMessageBlock
from tests.support.service import Service, make_topics

OUTER, TRANSFER = "order.paid", "transfer.made"


class Caller(Enum):
    """The object by which a service makes its local transaction."""

    CONNECTION = auto()
    SESSION = auto()
    ASYNC_SESSION = auto()


class End(Enum):
    COMMITS = auto()
    ROLLS_BACK = auto()
    FAILS_AFTER_COMMIT = auto()


class Failed(Exception):
    """The error that a service raises."""


@dataclass
class Local:
    """An open local transaction."""

    caller: Any
    execute: Callable[[str], Awaitable[None]]
    savepoint: Callable[[], AbstractAsyncContextManager[Any]]


@dataclass
class Bank:
    """A service, its ledger, and how it makes each of its transfers."""

    pay: Service
    ledger: Engine
    elsewhere: Engine
    """Another database than the database of the declared barrier."""
    caller: Caller
    end: End
    is_guarded_by_block: bool = False
    """Guarded by the block's own `guard`, not by `shield.guard`."""
    errors: list[ShieldTxError] = field(default_factory=list)

    @contextmanager
    def service(self) -> Iterator[None]:
        """Swallow the error of one service, so that the others continue."""
        try:
            yield
        except Failed:
            pass
        except ShieldTxError as error:
            self.errors.append(error)

    async def transfer(self, half: HalfMessageBlock, engine: Engine | None = None) -> None:
        """Make the local transaction of a block."""
        async with self.local(engine or self.ledger) as local:
            await self.book(half, local)
        self.fail_after_commit()

    async def book(self, half: HalfMessageBlock, local: Local) -> None:
        """Run the statements of the local transaction of a block."""
        guard = half.guard if self.is_guarded_by_block else self.pay.app.guard
        guard(local.caller)
        await local.execute(TRANSFER)
        if self.end is End.ROLLS_BACK:
            raise Failed

    def fail_after_commit(self) -> None:
        if self.end is End.FAILS_AFTER_COMMIT:
            raise Failed

    @asynccontextmanager
    async def local(self, engine: Engine) -> AsyncIterator[Local]:
        """Make a local transaction that commits, unless an error leaves it."""
        if self.caller is Caller.ASYNC_SESSION:
            async_engine = create_async_engine(
                engine.url, execution_options=engine.get_execution_options()
            )
            try:
                async with AsyncSession(async_engine) as session, session.begin():
                    yield Local(session, _asynchronous(session), session.begin_nested)
            finally:
                await async_engine.dispose()
            return
        if self.caller is Caller.SESSION:
            with Session(engine) as caller, caller.begin():
                yield Local(caller, _synchronous(caller), lambda: _savepoint(caller))
            return
        with engine.begin() as connection:
            yield Local(connection, _synchronous(connection), lambda: _savepoint(connection))

    def sent(self) -> Counter[str]:
        """Check all messages until their outcomes are known, and count the sent messages."""
        self.pay.execute(
            "UPDATE shield_outbox SET check_at = now() - interval '1 s' WHERE check_at IS NOT NULL"
        )
        for check_back in self.pay.app.half_messages.check_backs():
            while check_back.run_once().more:
                continue
        rows = self.pay.rows("SELECT event_type, status FROM shield_outbox")
        assert {status for _, status in rows} <= {"INIT", "DISCARDED"}
        return Counter(name for name, status in rows if status == "INIT")

    def committed(self) -> Counter[str]:
        """Count the local transactions that committed, by their message."""
        found: Counter[str] = Counter()
        for engine in (self.ledger, self.elsewhere):
            with engine.connect() as connection:
                found.update(connection.scalars(text("SELECT what FROM entries")))
        return found


def _asynchronous(session: AsyncSession) -> Callable[[str], Awaitable[None]]:
    async def execute(what: str) -> None:
        await session.execute(text("INSERT INTO entries VALUES (:what)"), {"what": what})

    return execute


def _synchronous(caller: Any) -> Callable[[str], Awaitable[None]]:
    async def execute(what: str) -> None:
        caller.execute(text("INSERT INTO entries VALUES (:what)"), {"what": what})

    return execute


@asynccontextmanager
async def _savepoint(caller: Any) -> AsyncIterator[None]:
    with caller.begin_nested():
        yield


# --- uses -----------------------------------------------------------------------------------------


async def fresh(bank: Bank) -> None:
    for _ in range(2):
        with bank.service():
            async with bank.pay.app.half(TRANSFER) as half:
                await bank.transfer(half)


async def used_again(bank: Bank) -> None:
    half = bank.pay.app.half(TRANSFER)
    for _ in range(2):
        with bank.service():
            async with half:
                await bank.transfer(half)


async def used_again_after_a_rollback_call(bank: Bank) -> None:
    half = bank.pay.app.half(TRANSFER)
    with bank.service(), half:
        half.rollback()
    with bank.service():
        async with half:
            await bank.transfer(half)


async def used_within_itself(bank: Bank) -> None:
    half = bank.pay.app.half(TRANSFER)
    with bank.service():
        async with half:
            with bank.service(), half:
                await bank.transfer(half)
            # The error of the second use is caught, and the first use continues.
            await bank.transfer(half)


async def used_twice_at_once(bank: Bank) -> None:
    half = bank.pay.app.half(TRANSFER)

    async def use() -> None:
        with bank.service():
            async with half:
                await bank.transfer(half)

    await asyncio.gather(use(), use())


async def after_its_end(bank: Bank) -> None:
    with bank.service():
        async with bank.pay.app.half(TRANSFER) as half:
            half.rollback()
    with bank.service():
        await bank.transfer(half)


async def in_a_task_of_an_ended_block(bank: Bank) -> None:
    has_ended = asyncio.Event()

    async def late(half: HalfMessageBlock) -> None:
        await has_ended.wait()
        with bank.service():
            await bank.transfer(half)

    with bank.service():
        async with bank.pay.app.half(OUTER):
            async with bank.pay.app.half(TRANSFER) as half:
                task = asyncio.create_task(late(half))
                half.rollback()
            has_ended.set()
            await task
            raise Failed


async def in_a_savepoint(bank: Bank) -> None:
    with suppress(Failed):
        async with bank.local(bank.ledger) as local:
            with bank.service():
                async with local.savepoint(), bank.pay.app.half(TRANSFER) as half:
                    await bank.book(half, local)
            bank.fail_after_commit()


async def in_another_database(bank: Bank) -> None:
    with bank.service():
        async with bank.pay.app.half(TRANSFER) as half:
            await bank.transfer(half, bank.elsewhere)


async def without_transactions(bank: Bank) -> None:
    autocommit = bank.ledger.execution_options(isolation_level="AUTOCOMMIT")
    with bank.service():
        async with bank.pay.app.half(TRANSFER) as half:
            await bank.transfer(half, autocommit)


Use = Callable[[Bank], Awaitable[None]]
REFUSED: tuple[Use, ...] = (
    used_again,
    used_again_after_a_rollback_call,
    used_within_itself,
    used_twice_at_once,
    after_its_end,
    in_a_task_of_an_ended_block,
    in_a_savepoint,
    in_another_database,
    without_transactions,
)


@pytest.fixture
def pay(make_service: Callable[..., Service], ledger: Engine) -> Service:
    service = make_service("pay", half_check_timeout=5.0, barrier_patience=0.3)
    for event_type in (OUTER, TRANSFER):
        service.app.declare(event_type)
    service.app.barrier(OUTER, TRANSFER, engine=ledger)
    make_topics(service)
    _create_entries(service.engine)
    return service


def _create_entries(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE entries (what text)"))


def _named(value: Any) -> str | None:
    return value.name if isinstance(value, Enum) else getattr(value, "__name__", None)


@pytest.mark.parametrize(
    ("use", "end", "caller"), [*product((fresh, *REFUSED), End, Caller)], ids=_named
)
def test_message_is_sent_for_each_committed_local_transaction(
    pay: Service, ledger: Engine, use: Use, end: End, caller: Caller
) -> None:
    for is_guarded_by_block in (False, True):
        bank = Bank(pay, ledger, pay.engine, caller, end, is_guarded_by_block)
        asyncio.run(use(bank))  # type: ignore[arg-type]

        assert bank.sent() == bank.committed()
        assert all(isinstance(error, TransactionRefused) for error in bank.errors)
        # A transaction that an AsyncSession rolled back itself is not refused.
        assert bank.errors or use not in REFUSED or end is End.ROLLS_BACK
    if use is fresh:
        assert not bank.errors
        assert bank.committed()[TRANSFER] == (0 if end is End.ROLLS_BACK else 4)


# --- a block has one use --------------------------------------------------------------------------


def test_reused_block_is_refused_even_without_a_barrier(pay: Service) -> None:
    pay.app.declare("invoice.sent")
    half = pay.app.half("invoice.sent", rollback_on=(Failed,))
    with suppress(Failed), half:
        raise Failed
    with pytest.raises(TransactionRefused, match=r"new block with shield\.half.* for each try"):
        half.__enter__()
    assert pay.rows("SELECT status FROM shield_outbox") == [("DISCARDED",)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_block_whose_message_could_not_be_stored_is_not_reused(
    pay: Service, asynchronous: bool
) -> None:
    half = pay.app.half("unknown.type")
    with pytest.raises(UnknownEventType):
        asyncio.run(half.__aenter__()) if asynchronous else half.__enter__()
    with pytest.raises(TransactionRefused, match="new block"):
        half.__enter__()
    with pytest.raises(TransactionRefused, match="has ended"):
        half.commit()


CALLS: dict[str, Callable[[HalfMessageBlock], object]] = {
    "prepare": lambda half: half.prepare(TRANSFER),
    "guard": lambda half: half.guard(Session()),
    "commit": lambda half: half.commit(),
    "rollback": lambda half: half.rollback(),
    "unknown": lambda half: half.unknown(),
}


@pytest.mark.parametrize("call", CALLS)
def test_call_outside_of_its_block_is_refused(pay: Service, call: str) -> None:
    half = pay.app.half(TRANSFER)
    with pytest.raises(TransactionRefused, match=rf"{call}\(\).* not open"):
        CALLS[call](half)
    with half:
        half.rollback()
    with pytest.raises(TransactionRefused, match=rf"has ended.*{call}\(\)"):
        CALLS[call](half)
    assert pay.rows("SELECT status FROM shield_outbox") == [("DISCARDED",)]


def test_a_decorated_method_opens_a_block_for_each_try(pay: Service, ledger: Engine) -> None:
    @pay.app.transactional(TRANSFER, payload="tries_left")
    def transfer(tries_left: int) -> None:
        with ledger.begin() as connection:
            pay.app.guard(connection)
            connection.execute(text("INSERT INTO entries VALUES ('transfer.made')"))
            if tries_left:
                raise Failed

    for tries_left in (2, 1, 0):
        with suppress(Failed):
            transfer(tries_left)

    bank = Bank(pay, ledger, pay.engine, Caller.CONNECTION, End.COMMITS)
    assert bank.sent() == bank.committed() == {TRANSFER: 1}
