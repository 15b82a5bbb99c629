"""A message is sent only if its data has committed, however a session finds its connections.

The COMMIT itself may refuse the data, by a deferred foreign key: the barrier must be in the same
transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, Insert, Select, UpdateBase, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx.errors import TransactionRefused
from shieldtx.half_messages.block import HalfMessageBlock
from tests.support.service import Service, make_topics

PAID = "orders.paid"


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"
    id: Mapped[int] = mapped_column(primary_key=True)
    parent: Mapped[int | None]


class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Engines:
    """Two engines of one database, as of a service whose replica may become the primary."""

    writer: Any
    reader: Any


SessionClass = Callable[[Engines], Callable[[], Any]]


def one_engine(engines: Engines) -> Callable[[], Any]:
    return lambda: Session(engines.writer)


def router_that_knows_updates(engines: Engines) -> Callable[[], Any]:
    """The recipe of SQLAlchemy's documentation."""

    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **__: Any) -> Engine:
            writes = self._flushing or isinstance(clause, UpdateBase)
            return engines.writer if writes else engines.reader

    return Routing


def router_that_knows_inserts(engines: Engines) -> Callable[[], Any]:
    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **__: Any) -> Engine:
            writes = self._flushing or isinstance(clause, Insert)
            return engines.writer if writes else engines.reader

    return Routing


def router_that_knows_selects(engines: Engines) -> Callable[[], Any]:
    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **__: Any) -> Engine:
            reads = isinstance(clause, Select)
            return engines.reader if reads else engines.writer

    return Routing


def router_by_class(engines: Engines) -> Callable[[], Any]:
    """Routes its barrier to another engine than its data."""

    class Routing(Session):
        def get_bind(self, mapper: Any = None, **_: Any) -> Engine:
            return engines.writer if mapper is not None else engines.reader

    return Routing


def databases_by_class(engines: Engines) -> Callable[[], Any]:
    return lambda: Session(engines.reader, binds={Booking: engines.writer})


def databases_by_class_only(engines: Engines) -> Callable[[], Any]:
    return lambda: Session(binds={Booking: engines.writer})


FOLLOWED = (
    one_engine,
    router_that_knows_updates,
    router_that_knows_inserts,
    router_that_knows_selects,
)
REFUSED = (router_by_class, databases_by_class, databases_by_class_only)

Guard = Callable[[HalfMessageBlock, Any], None]


def by_session(half: HalfMessageBlock, session: Session) -> None:
    half.guard(session)


def by_connection_of_reads(half: HalfMessageBlock, session: Session) -> None:
    """Guard a connection of reads, as code does that does not know how the session finds
    connections.
    """
    half.guard(session.connection(bind_arguments={"mapper": Note, "clause": Note.__table__}))


@pytest.fixture
def pay(make_service: Callable[..., Service], ledger: Engine) -> Service:
    service = make_service("pay", half_check_timeout=5.0, barrier_patience=0.3)
    service.app.declare(PAID)
    service.app.barrier(PAID, engine=ledger)
    make_topics(service)
    Base.metadata.create_all(ledger)
    with ledger.begin() as connection:
        connection.execute(
            text(
                "ALTER TABLE bookings ADD CONSTRAINT parent FOREIGN KEY (parent) "
                "REFERENCES bookings (id) DEFERRABLE INITIALLY DEFERRED"
            )
        )
    return service


@contextmanager
def _engines(ledger: Engine) -> Iterator[Engines]:
    engines = Engines(create_engine(ledger.url), create_engine(ledger.url))
    try:
        yield engines
    finally:
        engines.writer.dispose()
        engines.reader.dispose()


def _sent(pay: Service) -> int:
    """Check all messages until their outcomes are known, and count the sent messages."""
    pay.execute("UPDATE shield_outbox SET check_at = now() - interval '1 s' WHERE status = 'HALF'")
    for check_back in pay.app.half_messages.check_backs():
        while check_back.run_once().more:
            continue
    assert set(pay.outbox()) <= {"INIT", "DISCARDED"}
    return pay.outbox().get("INIT", 0)


def _committed(ledger: Engine) -> int:
    with ledger.connect() as connection:
        return int(connection.scalar(text("SELECT count(*) FROM bookings")))


def _book(session: Session, number: int, *, is_refused: bool) -> None:
    session.add(Booking(id=number, parent=999 if is_refused else None))


# Chance decides which of several connections commits first, so each case runs several times.
TRIES = 6


@pytest.mark.parametrize(
    ("kind", "guard", "is_refused"),
    [*product((*FOLLOWED, *REFUSED), (by_session, by_connection_of_reads), (True, False))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_message_is_sent_if_its_data_has_committed(
    pay: Service, ledger: Engine, kind: SessionClass, guard: Guard, is_refused: bool
) -> None:
    errors: list[Exception] = []
    with _engines(ledger) as engines:
        session_of = kind(engines)
        for number in range(TRIES):
            try:
                with pay.app.half(PAID) as half, session_of() as session, session.begin():
                    guard(half, session)
                    _book(session, number, is_refused=is_refused)
            except (TransactionRefused, IntegrityError, UnboundExecutionError) as error:
                errors.append(error)
    assert _sent(pay) == _committed(ledger)
    if kind in FOLLOWED and guard is by_session:
        assert _committed(ledger) == (0 if is_refused else TRIES)
        assert all(isinstance(error, IntegrityError) for error in errors)
    if kind in REFUSED and guard is by_session:
        assert _committed(ledger) == 0
        assert all(isinstance(error, TransactionRefused) for error in errors)


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [*product((*FOLLOWED, *REFUSED), (True, False))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_message_of_an_asynchronous_session_follows_its_data(
    pay: Service, ledger: Engine, kind: SessionClass, is_refused: bool
) -> None:
    async def main() -> None:
        writer, reader = create_async_engine(ledger.url), create_async_engine(ledger.url)
        session_of = kind(Engines(writer.sync_engine, reader.sync_engine))
        try:
            for number in range(TRIES):
                with suppress(TransactionRefused, IntegrityError):
                    async with (
                        pay.app.half(PAID) as half,
                        AsyncSession(sync_session_class=lambda **_: session_of()) as session,
                        session.begin(),
                    ):
                        half.guard(session)
                        _book(session.sync_session, number, is_refused=is_refused)
        finally:
            await writer.dispose()
            await reader.dispose()

    asyncio.run(main())
    assert _sent(pay) == _committed(ledger)
    assert _committed(ledger) == (TRIES if kind in FOLLOWED and not is_refused else 0)


def test_reads_over_another_connection_are_not_refused(pay: Service, ledger: Engine) -> None:
    with (
        _engines(ledger) as engines,
        pay.app.half(PAID) as half,
        router_that_knows_updates(engines)() as session,
        session.begin(),
    ):
        assert session.get(Booking, 1) is None
        half.guard(session)
        session.add(Booking(id=1))
        assert len(session.get_transaction().connections) == 2
    assert _sent(pay) == _committed(ledger) == 1


@pytest.mark.parametrize("is_guarded_by_connection", [False, True])
def test_second_database_is_allowed_if_a_connection_is_guarded(
    pay: Service, ledger: Engine, is_guarded_by_connection: bool
) -> None:
    Base.metadata.create_all(pay.engine)
    with (
        suppress(TransactionRefused),
        pay.app.half(PAID) as half,
        Session(ledger, binds={Note: pay.engine}) as session,
        session.begin(),
    ):
        half.guard(session.connection() if is_guarded_by_connection else session)
        session.add_all([Booking(id=1), Note(id=1)])
    notes = pay.rows("SELECT count(*) FROM notes")
    assert notes == [(int(is_guarded_by_connection),)]
    assert _sent(pay) == _committed(ledger) == int(is_guarded_by_connection)


def test_separate_commit_of_an_unguarded_connection_is_refused(
    pay: Service, ledger: Engine
) -> None:
    async def main() -> None:
        writer, reader = create_async_engine(ledger.url), create_async_engine(ledger.url)
        session_of = databases_by_class(Engines(writer.sync_engine, reader.sync_engine))
        try:
            async with AsyncSession(sync_session_class=lambda **_: session_of()) as session:
                with pytest.raises(TransactionRefused, match="several connections"):  # noqa: PT012
                    async with pay.app.half(PAID) as half:
                        half.guard(session)
                        session.add(Booking(id=1))
                        await session.flush()
                        by = {"mapper": Booking}
                        await (await session.connection(bind_arguments=by)).commit()
        finally:
            await writer.dispose()
            await reader.dispose()

    asyncio.run(main())
    assert _sent(pay) == _committed(ledger) == 0


def test_unguarded_session_may_write_over_several_connections(pay: Service, ledger: Engine) -> None:
    """The savepoint that contained the guard has been rolled back."""
    Base.metadata.create_all(pay.engine)
    with pay.app.half(PAID) as half, Session(ledger, binds={Note: pay.engine}) as session:
        with suppress(TransactionRefused), session.begin_nested():
            half.guard(session)
        session.add_all([Booking(id=1), Note(id=1)])
        session.commit()
        half.rollback()
    assert (_sent(pay), _committed(ledger)) == (0, 1)
    assert pay.rows("SELECT count(*) FROM notes") == [(1,)]


def test_async_session_with_a_failed_transaction_is_not_guarded(
    pay: Service, ledger: Engine
) -> None:
    async def main() -> None:
        engine = create_async_engine(ledger.url)
        try:
            async with pay.app.half(PAID) as half, AsyncSession(engine) as session:
                session.add(Booking(id=None, parent="not a number"))
                with suppress(DBAPIError):
                    await session.flush()
                with pytest.raises(TransactionRefused, match="ended or failed"):
                    half.guard(session)
                half.rollback()
        finally:
            await engine.dispose()

    asyncio.run(main())
    assert _sent(pay) == _committed(ledger) == 0


def test_reads_may_be_in_autocommit(pay: Service, ledger: Engine) -> None:
    async def main() -> None:
        writer = create_async_engine(ledger.url)
        reader = create_async_engine(ledger.url, isolation_level="AUTOCOMMIT")
        session_of = router_that_knows_updates(Engines(writer.sync_engine, reader.sync_engine))
        try:
            async with (
                pay.app.half(PAID) as half,
                AsyncSession(sync_session_class=lambda **_: session_of()) as session,
                session.begin(),
            ):
                half.guard(session)
                assert await session.get(Booking, 1) is None
                session.add(Booking(id=1))
        finally:
            await writer.dispose()
            await reader.dispose()

    asyncio.run(main())
    assert _sent(pay) == _committed(ledger) == 1


def test_two_phases_commit_over_several_connections(pay: Service, ledger: Engine) -> None:
    with _engines(ledger) as engines:
        binds = {Booking: engines.writer}
        with (
            pay.app.half(PAID) as half,
            Session(engines.reader, binds=binds, twophase=True) as session,
            session.begin(),
        ):
            half.guard(session)
            session.add(Booking(id=1))
    assert _sent(pay) == _committed(ledger) == 1
