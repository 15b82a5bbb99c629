"""A caller: one session or connection of a case, with the same calls for asynchronous ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any
from uuid import uuid4

from sqlalchemy import Insert, insert, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from shieldtx import Event
from tests.integration.outbox.callers.cases import Case, Driver, Given, Isolation, Joined, Mode
from tests.integration.outbox.callers.databases import TAKEN, Databases, Entry
from tests.integration.outbox.callers.listeners import ListenedSession
from tests.support.write_side_shop import Order


class Caller:
    """Opens the session and connection of a case, and passes on each call, awaited if necessary."""

    def __init__(self, case: Case, databases: Databases) -> None:
        self.case = case
        self._databases = databases
        self._outbox = databases.shop.outbox
        self._runner = databases.runner
        self.connection: Any = None
        """The caller's own connection, whose transaction a shared session joins."""
        self.session: Any = None
        """The session; the connection where the case has no session."""
        self.savepoints: list[Any] = []

    @property
    def sync_session(self) -> Session:
        """The session inside scoped and asynchronous sessions."""
        session = self.session
        if self.case.mode is Mode.SCOPED:
            session = session()
        return session.sync_session if isinstance(session, AsyncSession) else session

    def wait(self, result: Any) -> Any:
        """Await the result of an asynchronous call."""

        async def done(awaited: Awaitable[Any]) -> Any:
            return await awaited

        return self._runner.run(done(result)) if isawaitable(result) else result

    def open(self) -> None:
        case = self.case
        engine = self._databases.engine(case)
        level = {"isolation_level": case.isolation.value}
        by_connection = case.given is Given.CONNECTION_OPTION
        if case.mode.is_shared or case.mode is Mode.BARE:
            self.connection = self.wait(engine.connect())
            if by_connection:
                self.wait(self.connection.execution_options(**level))
        if case.mode.is_shared and case.joined is not Joined.IDLE:
            self.wait(self.connection.begin())
        has_savepoints = case.isolation is not Isolation.AUTOCOMMIT
        if case.mode.is_shared and case.joined is Joined.SAVEPOINT and has_savepoints:
            self.wait(self.connection.begin_nested())
        self.session = self.connection if case.mode is Mode.BARE else self._make_session(engine)
        if by_connection and self.connection is None:
            self.wait(self.session.connection(execution_options=level))

    def _make_session(self, engine: Any) -> Any:
        case = self.case
        options: dict[str, Any] = {}
        if case.mode.is_two_phase:
            options["twophase"] = True
        if case.mode.has_two_databases:
            options["binds"] = {Entry: self._databases.engine(case, other=True)}
        if case.mode.is_shared:
            options["join_transaction_mode"] = case.mode.value
        bind = engine if self.connection is None else self.connection
        if not case.driver.is_async:
            made = sessionmaker(bind, class_=ListenedSession, **options)
            return scoped_session(made) if case.mode is Mode.SCOPED else made()
        made = async_sessionmaker(bind, sync_session_class=ListenedSession, **options)
        if case.mode is Mode.SCOPED:
            return async_scoped_session(made, scopefunc=lambda: None)
        return made()

    @property
    def has_begun(self) -> bool:
        """Whether the session takes part in a transaction of the database."""
        root = self.sync_session.get_transaction() if self.session is not None else None
        return root is not None and bool(root.connections)

    def is_in_other(self, number: int) -> bool:
        """Whether a row is in the other database: every second row is, if the case has two."""
        return self.case.mode.has_two_databases and number % 2 == 0

    def row_of(self, number: int) -> type[Order | Entry]:
        return Entry if self.is_in_other(number) else Order

    def insert(self, number: int) -> Insert:
        return insert(self.row_of(number)).values(id=number)

    def write(self, number: int) -> None:
        """Write a row by a statement."""
        self.wait(self.session.execute(self.insert(number)))

    def write_taken(self) -> None:
        """Write a row that already exists."""
        self.wait(self.session.execute(insert(Order).values(id=TAKEN)))

    def add_object(self, number: int) -> None:
        """Leave a row to the next flush."""
        self.session.add(self.row_of(number)(id=number))

    def add_event(self, number: int) -> None:
        """Add an event as a caller does outside of listeners."""
        event = Event(type="order.placed", key=str(number))
        if not self.case.driver.is_async:
            self._outbox.add(self.session, event)
        elif self.case.by_run_sync or self.case.mode is Mode.BARE:
            self._run_sync(self._outbox.add, event)
        else:

            async def add() -> None:
                self._outbox.add(self.session, event)

            self.wait(add())

    def add_event_as_listener(self, number: int) -> None:
        """Add an event inside a listener, which cannot await."""
        is_inside = self.case.driver.is_async and self.case.by_run_sync
        target = self.sync_session if is_inside else self.session
        self._outbox.add(target, Event(type="order.placed", key=str(number)))

    def execute(self, statement: str, *, other: bool = False) -> Any:
        bind: dict[str, Any] = {"bind_arguments": {"mapper": Entry}} if other else {}
        return self.wait(self.session.execute(text(statement), **bind))

    def call(self, method: str) -> None:
        self.wait(getattr(self.session, method)())

    def cancel(self) -> None:
        """Cancel an event that does not exist: events that wait are written before."""
        self._run_sync(self._outbox.cancel, uuid4())

    def prepare(self) -> None:
        self._run_sync(Session.prepare)

    def _run_sync(self, work: Callable[..., Any], *arguments: Any) -> Any:
        session = self.session() if self.case.mode is Mode.SCOPED else self.session
        if self.case.driver.is_async:
            return self.wait(session.run_sync(work, *arguments))
        return work(session, *arguments)

    def begin_nested(self) -> None:
        self.savepoints.append(self.wait(self.session.begin_nested()))

    def release(self) -> None:
        self.wait(self.savepoints.pop().commit())

    def undo(self) -> None:
        self.wait(self.savepoints.pop().rollback())

    def _driver_connection(self) -> Any:
        connection = self.session
        if self.case.mode is not Mode.BARE:
            connection = self.wait(self.session.connection())
        if self.case.driver.is_async:
            return self.wait(connection.get_raw_connection()).driver_connection
        return connection.connection.driver_connection

    def end_driver(self, how: str) -> None:
        """Commit or roll back without SQLAlchemy."""
        driver = self._driver_connection()
        is_asyncpg = self.case.driver is Driver.ASYNCPG
        self.wait(driver.execute(how) if is_asyncpg else getattr(driver, how)())

    def undo_by_hand(self, action: Callable[[], None]) -> None:
        """Act in a savepoint made by a plain statement, and roll back to it."""
        self.execute("SAVEPOINT by_hand")
        action()
        self.execute("ROLLBACK TO SAVEPOINT by_hand")

    def undo_in_block(self, action: Callable[[], None]) -> None:
        """Act in a failing block of psycopg; other drivers have no visible blocks."""
        if self.case.driver not in {Driver.PSYCOPG, Driver.PSYCOPG_ASYNC}:
            self.undo_by_hand(action)
            return
        block = self._driver_connection().transaction(force_rollback=True)
        enter, leave = (
            ("__aenter__", "__aexit__") if self.case.driver.is_async else ("__enter__", "__exit__")
        )
        self.wait(getattr(block, enter)())
        try:
            action()
        finally:
            self.wait(getattr(block, leave)(None, None, None))

    def cut(self, *, other: bool) -> None:
        backend = self.execute("SELECT pg_backend_pid()", other=other).scalar()
        self._databases.cut(backend, other=other)

    def close_session(self) -> None:
        if self.case.mode is Mode.SCOPED:
            self.call("remove")
        elif self.session is not None and self.case.mode is not Mode.BARE:
            self.call("close")

    def close_connection(self) -> None:
        if self.connection is not None:
            self.wait(self.connection.close())
