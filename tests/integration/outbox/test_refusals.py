"""A transaction that cannot take an event for certain is refused; the event is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Mapped, Session, mapped_column

from shieldtx import Event, ShieldTx
from shieldtx.errors import TransactionRefused
from tests.support.orders import Base, Order, counts, placed, shop
from tests.support.service import Service

__all__ = ["shop"]

pytestmark = pytest.mark.filterwarnings("ignore:Session's state has been changed")


class Entry(Base):
    """A row in another database."""

    __tablename__ = "entries"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def ledger(database_url: str) -> Iterator[Engine]:
    engine = create_engine(database_url)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def adds_when(name: str, app: ShieldTx) -> type[Session]:
    """Return a class of sessions whose listener adds an event."""

    class Listened(Session):
        pass

    def add(session: Session, *_: Any) -> None:
        if not session.info.get("added"):
            session.info["added"] = True
            app.outbox.add(session, placed(name))

    event.listen(Listened, name, add)
    return Listened


@pytest.mark.parametrize("twophase", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["before_flush", "after_flush", "before_commit"])
def test_an_event_that_is_added_during_the_commit_is_written(
    shop: Service, name: str, twophase: bool, first: bool
) -> None:
    with adds_when(name, shop.app)(shop.engine, twophase=twophase) as session:
        session.add(Order(id=1))
        if first:
            shop.app.outbox.add(session, placed("first"))
        session.commit()

    assert counts(shop) == (1, 1 + first)


@pytest.mark.parametrize("name", ["after_commit", "after_rollback"])
def test_an_ending_session_takes_no_event(shop: Service, name: str) -> None:
    with adds_when(name, shop.app)(shop.engine) as session:
        session.execute(select(1))
        end = session.commit if name == "after_commit" else session.rollback
        with pytest.raises(TransactionRefused, match="transaction has ended or failed"):
            end()

    assert counts(shop) == (0, 0)


@pytest.mark.parametrize("name", ["after_commit", "after_rollback"])
def test_an_ending_asynchronous_session_takes_no_event(shop: Service, name: str) -> None:
    async def work() -> None:
        engine = create_async_engine(shop.engine.url)
        async with AsyncSession(engine) as session:

            @event.listens_for(session.sync_session, name)
            def add(_: Session) -> None:
                shop.app.outbox.add(session, placed())

            await session.execute(select(1))
            with pytest.raises(TransactionRefused, match="transaction has ended or failed"):
                await (session.commit() if name == "after_commit" else session.rollback())
        await engine.dispose()

    asyncio.run(work())
    assert counts(shop) == (0, 0)


def test_a_prepared_transaction_takes_no_event(shop: Service) -> None:
    with Session(shop.engine, twophase=True) as session:
        session.add(Order(id=1))
        session.prepare()
        with pytest.raises(TransactionRefused):
            shop.app.outbox.add(session, placed())
        session.rollback()

    assert counts(shop) == (0, 0)


def test_a_session_that_writes_into_two_databases_is_refused(shop: Service, ledger: Engine) -> None:
    with Session(shop.engine, binds={Entry: ledger}) as session:
        shop.app.outbox.add(session, placed())
        session.add_all([Order(id=1), Entry(id=1)])
        with pytest.raises(TransactionRefused, match="writes into several databases"):
            session.commit()

    assert counts(shop) == (0, 0)
    assert entries(ledger) == 0


def test_second_database_that_joins_during_a_commit_is_refused(
    shop: Service, ledger: Engine
) -> None:
    class Late(Session):
        pass

    with Late(shop.engine, binds={Entry: ledger}) as session:
        shop.app.outbox.add(session, placed())

        @event.listens_for(Late, "before_commit")
        def join(joined: Session) -> None:
            joined.add(Entry(id=1))

        with pytest.raises(TransactionRefused, match="writes into several databases"):
            session.commit()

    assert counts(shop) == (0, 0)


def test_event_after_a_second_database_joined_is_refused(shop: Service, ledger: Engine) -> None:
    def join(joined: Session) -> None:
        joined.execute(insert(Entry).values(id=1))
        shop.app.outbox.add(joined, placed())

    # A session commits its databases in a random order.
    for _ in range(30):
        with Session(shop.engine, binds={Entry: ledger}) as session:
            event.listen(session, "before_commit", join)
            with pytest.raises(TransactionRefused, match="writes into several databases"):
                session.commit()

    assert counts(shop) == (0, 0)
    assert entries(ledger) == 0


def test_an_asynchronous_session_with_two_databases_is_refused(
    shop: Service, ledger: Engine
) -> None:
    async def work(engine: Any, other: Any) -> None:
        async with AsyncSession(engine, binds={Entry: other}) as session:
            session.add_all([Order(id=1), Entry(id=1)])
            shop.app.outbox.add(session, placed())
            with pytest.raises(TransactionRefused, match="writes into several databases"):
                await session.commit()

    in_both(work, shop.engine, ledger)
    assert counts(shop) == (0, 0)
    assert entries(ledger) == 0


def test_the_other_databases_connection_does_not_commit_alone(
    shop: Service, ledger: Engine
) -> None:
    with Session(shop.engine, binds={Entry: ledger}) as session:
        session.add_all([Order(id=1), Entry(id=1)])
        session.flush()
        shop.app.outbox.add(session, placed())
        other = session.connection(bind_arguments={"mapper": Entry})
        with pytest.raises(TransactionRefused, match="writes into several databases"):
            other.commit()

    assert counts(shop) == (0, 0)
    assert entries(ledger) == 0


def test_foreign_database_error_is_raised_unchanged(shop: Service) -> None:
    shop.execute("ALTER TABLE shield_outbox ADD CONSTRAINT short CHECK (length(key) < 2)")
    with Session(shop.engine) as session:
        shop.app.outbox.add(session, Event(type="orders.placed", key="long"))
        with pytest.raises(IntegrityError, match="short"):
            session.commit()


def test_second_database_that_is_only_read_is_accepted(shop: Service, ledger: Engine) -> None:
    with Session(shop.engine, binds={Entry: ledger}) as session:
        assert session.scalars(select(Entry)).all() == []
        shop.app.outbox.add(session, placed())
        session.add(Order(id=1))
        session.commit()

    assert counts(shop) == (1, 1)


def test_second_database_read_in_autocommit_is_accepted(shop: Service, ledger: Engine) -> None:
    async def work(engine: Any, other: Any) -> None:
        other = other.execution_options(isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine, binds={Entry: other}) as session:
            assert (await session.scalars(select(Entry))).all() == []
            shop.app.outbox.add(session, placed())
            session.add(Order(id=1))
            await session.commit()

    in_both(work, shop.engine, ledger)
    assert counts(shop) == (1, 1)


def test_a_session_without_events_may_write_into_two_databases(
    shop: Service, ledger: Engine
) -> None:
    with Session(shop.engine, binds={Entry: ledger}) as session:
        session.add_all([Order(id=1), Entry(id=1)])
        session.commit()
        shop.app.outbox.add(session, placed())
        session.commit()
        session.add_all([Order(id=2), Entry(id=2)])
        session.commit()

    assert (counts(shop), entries(ledger)) == ((2, 1), 2)


def test_two_databases_commit_in_two_phases(shop: Service, ledger: Engine) -> None:
    with Session(shop.engine, binds={Entry: ledger}, twophase=True) as session:
        shop.app.outbox.add(session, placed())
        session.add_all([Order(id=1), Entry(id=1)])
        session.commit()

    assert (counts(shop), entries(ledger)) == ((1, 1), 1)


@pytest.mark.parametrize("twophase", [False, True])
def test_event_that_joins_a_foreign_commit_is_written_or_refused(
    shop: Service, ledger: Engine, twophase: bool
) -> None:
    async def work(engine: Any, other: Any) -> None:
        async with AsyncSession(engine, binds={Entry: other}, twophase=twophase) as session:

            @event.listens_for(session.sync_session, "before_commit")
            def add(_: Session) -> None:
                shop.app.outbox.add(session, placed())

            session.add(Entry(id=1))
            with nullcontext() if twophase else pytest.raises(TransactionRefused, match="several"):
                await session.commit()

    in_both(work, shop.engine, ledger)
    assert counts(shop) == (0, int(twophase))
    assert entries(ledger) == int(twophase)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_session_without_a_database_of_its_own_is_advised(
    shop: Service, asynchronous: bool
) -> None:
    session: Session | AsyncSession = Session(binds={Order: shop.engine})
    if asynchronous:
        session = AsyncSession(binds={Order: create_async_engine(shop.engine.url)})

    with pytest.raises(TransactionRefused, match=r"make it with Session\(bind=engine"):
        shop.app.outbox.add(session, placed())


def test_a_connection_with_other_schemas_is_refused(shop: Service) -> None:
    shop.execute("CREATE SCHEMA tenant")
    engine = shop.engine.execution_options(schema_translate_map={None: "tenant"})

    with Session(engine) as session, pytest.raises(TransactionRefused, match="to schema tenant"):
        shop.app.outbox.add(session, placed())
    with engine.begin() as connection, pytest.raises(TransactionRefused, match="to schema tenant"):
        shop.app.outbox.add(connection, placed())


def test_tables_in_their_own_schema_accept_a_map_of_schemas(
    make_service: Callable[..., Service],
) -> None:
    service = make_service("orders", database_schema="messages")
    service.app.declare("orders.placed")
    engine = service.engine.execution_options(schema_translate_map={None: "tenant"})

    with Session(engine) as session, session.begin():
        service.app.outbox.add(session, placed())

    assert service.rows("SELECT count(*) FROM messages.shield_outbox") == [(1,)]


def test_a_method_with_two_sessions_is_refused(shop: Service, ledger: Engine) -> None:
    @shop.app.publishes("orders.paid")
    def pay(*sessions: Any) -> dict[str, int]:
        raise AssertionError("it must not run")

    class Routing(Session):
        def get_bind(self, *_: Any, **__: Any) -> Engine:
            return shop.engine

    with (
        Session(shop.engine) as one,
        Session(ledger) as other,
        shop.engine.connect() as third,
        Session(shop.engine) as fourth,
    ):
        for two in (
            (one, other),
            (other, one),
            (one, third),
            (one, fourth),
            (Routing(), Routing()),
        ):
            with pytest.raises(TransactionRefused, match="pass only one"):
                pay(*two)

    assert counts(shop) == (0, 0)


def test_session_and_its_own_connection_are_one_transaction(shop: Service) -> None:
    @shop.app.publishes("orders.paid")
    def pay(*transactions: Any) -> dict[str, int]:
        return {"paid": 1}

    with Session(shop.engine) as session:
        pay(session, session.connection(), session)
        session.commit()
    with shop.engine.connect() as connection, Session(connection) as session:
        pay(connection, session)
        connection.commit()

    assert counts(shop) == (0, 2)


def entries(ledger: Engine) -> int:
    with ledger.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM entries")) or 0)


def in_both(work: Callable[[Any, Any], Awaitable[None]], first: Engine, second: Engine) -> None:
    async def run() -> None:
        engines = [create_async_engine(engine.url) for engine in (first, second)]
        try:
            await work(*engines)
        finally:
            for engine in engines:
                await engine.dispose()

    asyncio.run(run())
