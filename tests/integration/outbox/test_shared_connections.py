"""Events that are inserted when added: events of sessions on a Connection of their caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx.errors import TransactionRefused
from tests.support.orders import Order, counts, placed, shop
from tests.support.service import Service

__all__ = ["shop"]

GONE = "has ended without the session"


class Elsewhere(DeclarativeBase):
    pass


class Note(Elsewhere):
    __tablename__ = "notes"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def elsewhere(database_url: str) -> Iterator[Engine]:
    """A database of other data."""
    engine = create_engine(database_url)
    Elsewhere.metadata.create_all(engine)
    yield engine
    engine.dispose()


def raw(connection: Connection) -> Any:
    return connection.connection.driver_connection


def order_and_event(shop: Service, session: Session, number: int = 1) -> None:
    session.add(Order(id=number))
    shop.app.outbox.add(session, placed())


def test_owner_may_commit_by_the_driver_between_two_events(shop: Service) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        order_and_event(shop, session)
        raw(connection).commit()
        shop.app.outbox.add(session, placed())
        session.commit()
        connection.commit()
    assert counts(shop) == (1, 2)


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
def test_owner_may_end_the_transaction_by_the_driver_first(shop: Service, ends_by: str) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        order_and_event(shop, session)
        getattr(raw(connection), ends_by)()
        session.commit()
        connection.commit()
    assert counts(shop) == ((1, 1) if ends_by == "commit" else (0, 0))


def test_object_is_lost_with_an_event_inserted_last(
    shop: Service,
) -> None:
    with shop.engine.connect() as connection, Session(connection) as session:
        shop.app.outbox.add(session, placed())
        session.add(Order(id=1))
        raw(connection).rollback()
        with pytest.raises(TransactionRefused, match=GONE):
            session.commit()
    assert counts(shop) == (0, 0)


def test_object_is_written_before_its_event_in_a_driver_block(shop: Service) -> None:
    """The session is closed without a commit: executed statements stay, waiting objects are
    dropped.
    """
    with shop.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with raw(connection).transaction(), Session(connection) as session:
            order_and_event(shop, session)
        connection.commit()
    assert counts(shop) == (1, 1)


def test_a_block_of_the_driver_undoes_an_object_with_its_event(shop: Service) -> None:
    with shop.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with Session(connection) as session:
            with raw(connection).transaction(force_rollback=True):
                order_and_event(shop, session)
            session.commit()
        connection.commit()
    assert counts(shop) == (0, 0)


def test_session_commits_several_times_in_a_block_of_the_driver(
    shop: Service,
) -> None:
    with shop.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with raw(connection).transaction(), Session(connection) as session:
            for number in (1, 3):
                order_and_event(shop, session, number)
                session.add(Order(id=number + 1))
                session.commit()
        connection.commit()
    assert counts(shop) == (4, 2)


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
def test_session_may_continue_after_its_owner_ended_it(shop: Service, ends_by: str) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        session = Session(connection, join_transaction_mode="rollback_only")
        order_and_event(shop, session)
        getattr(connection, ends_by)()
        order_and_event(shop, session, 2)
        session.flush()
        connection.commit()
    assert counts(shop) == ((2, 2) if ends_by == "commit" else (1, 1))


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
def test_rollback_of_another_database_does_not_count_for_events(
    shop: Service, elsewhere: Engine
) -> None:
    with shop.engine.connect() as connection, elsewhere.connect() as other:
        binds = {Order: connection, Note: other}
        session = Session(binds=binds, join_transaction_mode="rollback_only")
        session.get_bind = _routed(session, connection)  # type: ignore[method-assign]
        other.begin()
        session.scalars(select(Note)).all()
        order_and_event(shop, session)
        session.add(Order(id=2))
        other.rollback()
        raw(connection).rollback()
        with pytest.raises(TransactionRefused, match=GONE):
            session.commit()
        session.close()
    assert counts(shop) == (0, 0)


def test_event_committed_by_the_driver_allows_a_second_database(
    shop: Service, elsewhere: Engine
) -> None:
    """Without the event, the session may write in two databases."""
    with shop.engine.connect() as connection:
        with Session(binds={Order: connection, Note: elsewhere}) as session:
            session.get_bind = _routed(session, connection)  # type: ignore[method-assign]
            order_and_event(shop, session)
            raw(connection).commit()
            session.execute(text("SELECT 1"))
            session.add_all([Order(id=2), Note(id=1)])
            session.commit()
        connection.commit()
    assert counts(shop) == (2, 1)
    with elsewhere.connect() as reading:
        assert reading.scalar(text("SELECT count(*) FROM notes")) == 1


def test_event_rolled_back_by_its_owner_allows_second_database(
    shop: Service, elsewhere: Engine
) -> None:
    with shop.engine.connect() as connection:
        connection.begin()
        binds = {Order: connection, Note: elsewhere}
        with Session(binds=binds, join_transaction_mode="rollback_only") as session:
            session.get_bind = _routed(session, connection)  # type: ignore[method-assign]
            order_and_event(shop, session)
            connection.rollback()
            session.add_all([Order(id=2), Note(id=1)])
            session.commit()
        connection.commit()
    assert counts(shop) == (1, 0)


def test_statements_in_another_database_do_not_affect_events(
    shop: Service, elsewhere: Engine
) -> None:
    with Session(binds={Order: shop.engine, Note: elsewhere}) as session:
        session.get_bind = _routed(session, shop.engine)  # type: ignore[method-assign]
        order_and_event(shop, session)
        session.flush()
        assert session.scalars(select(Note)).all() == []
        session.commit()
    assert counts(shop) == (1, 1)


def test_a_transaction_without_events_may_join_in_any_way(shop: Service) -> None:
    """An AsyncSession whose last transaction had events, and had to be in control."""

    async def main() -> None:
        engine = create_async_engine(shop.engine.url)
        async with engine.connect() as connection:
            session = AsyncSession(connection)
            session.add(Order(id=1))
            shop.app.outbox.add(session, placed())
            await session.commit()
            await connection.begin()
            session.add(Order(id=2))
            await session.commit()
            await connection.commit()
        await engine.dispose()

    asyncio.run(main())
    assert counts(shop) == (2, 1)


def _routed(session: Session, connection: Connection | Engine) -> Callable[..., Any]:
    """Route statements without a mapped class to the connection, as the events."""
    found = session.get_bind

    def get_bind(mapper: Any = None, **given: Any) -> Any:
        return connection if mapper is None else found(mapper, **given)

    return get_bind
