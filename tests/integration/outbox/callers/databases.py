"""The databases of the cases: an engine for each driver, and the committed rows."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tests.integration.outbox.callers.cases import Case, Driver, Given, Isolation
from tests.support.migrated_databases import MigratedDatabases
from tests.support.write_side_shop import Base, Shop

TAKEN = 0
"""The id of a row that already exists."""
FAILS_LATE = "INSERT INTO late (id) VALUES (0)"
"""Violates a constraint that the COMMIT checks."""


class OtherBase(DeclarativeBase):
    """The tables of the other database."""


class Entry(OtherBase):
    __tablename__ = "entries"

    id: Mapped[int] = mapped_column(primary_key=True)


class Databases:
    """A database with a shop and its events, and another database with entries only."""

    def __init__(self, shop_url: str, other_url: str) -> None:
        self.shop = Shop(shop_url, migrate=False)
        Base.metadata.create_all(self.shop.engine)
        self.urls = {False: make_url(shop_url), True: make_url(other_url)}
        self.runner = asyncio.Runner()
        self.numbers = count(1)
        self._engines: dict[tuple[Driver, Isolation | None, bool], Any] = {}
        self._checkers = {}
        for is_other, url in self.urls.items():
            plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
            checker = self._checkers[is_other] = psycopg.connect(plain, autocommit=True)
            checker.execute("CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
            checker.execute("INSERT INTO late (id) VALUES (0)")
        self._checkers[True].execute("CREATE TABLE entries (id int PRIMARY KEY)")
        self._checkers[False].execute("INSERT INTO orders (id) VALUES (%s)", [TAKEN])
        self._role = f"test_{uuid.uuid4().hex}"
        self._make_role()

    def _make_role(self) -> None:
        """Make a role for pg8000, which requires at least the standard number of iterations."""
        checker = self._checkers[False]
        checker.execute("SET scram_iterations = 4096")
        checker.execute(f"CREATE ROLE {self._role} SUPERUSER LOGIN PASSWORD '{self._role}'")

    def engine(self, case: Case, *, other: bool = False) -> Any:
        """Return the engine of a case, asynchronous for an asynchronous driver."""
        level = case.isolation if case.given is Given.ENGINE else None
        key = (case.driver, level, other)
        if key not in self._engines:
            self._engines[key] = self._make(case.driver, self.urls[other], level)
        engine = self._engines[key]
        if case.given is Given.ENGINE_OPTION:
            return engine.execution_options(isolation_level=case.isolation.value)
        return engine

    def _make(self, driver: Driver, url: URL, level: Isolation | None) -> Engine | AsyncEngine:
        if driver is Driver.PG8000:
            url = url.set(username=self._role, password=self._role)
        url = url.set(drivername=f"postgresql+{driver.removesuffix('_async')}")
        options = {"isolation_level": level.value} if level else {}
        make = create_async_engine if driver.is_async else create_engine
        # A connection that a case has cut may be in the pool again.
        return make(url, pool_pre_ping=True, **options)

    def cut(self, backend: int, *, other: bool) -> None:
        """Terminate a session of the server, and wait for its end."""
        query = "SELECT pg_terminate_backend(%s, 10000)"
        assert self._checkers[other].execute(query, [backend]).fetchone() == (True,)

    def resolve_prepared(self, case: Case, numbers: list[int]) -> None:
        """Resolve prepared transactions as a transaction manager does: as the other half ended."""
        if not case.mode.is_two_phase:
            return
        left = {other: self._prepared(other) for other in (False, True)}
        if any(left.values()):
            both = not case.mode.has_two_databases or all(left.values())
            commits = both or self.rows(numbers) | self.events(numbers)
            for other, ids in left.items():
                for gid in ids:
                    how = "COMMIT" if commits else "ROLLBACK"
                    self._checkers[other].execute(f"{how} PREPARED '{gid}'")

    def discard_broken(self, case: Case) -> None:
        """Empty a pool into which SQLAlchemy may have returned a connection without a transaction.

        PREPARE TRANSACTION rolls a failed transaction back without an error. On asyncpg, the driver
        then assumes an open transaction, and the next user of the connection writes in AUTOCOMMIT.
        """
        if case.driver is Driver.ASYNCPG and case.mode.is_two_phase:
            for other in (False, True):
                self.runner.run(self.engine(case, other=other).dispose())

    def _prepared(self, other: bool) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return [gid for (gid,) in self._checkers[other].execute(query)]

    def rows(self, numbers: list[int]) -> set[int]:
        """Return the committed business rows of both databases."""
        return self._ids("orders", False, numbers) | self._ids("entries", True, numbers)

    def events(self, numbers: list[int]) -> set[int]:
        """Return the committed events."""
        query = "SELECT key FROM shield_outbox WHERE key = ANY(%s)"
        keys = [str(number) for number in numbers]
        return {int(key) for (key,) in self._checkers[False].execute(query, [keys])}

    def _ids(self, table: str, other: bool, numbers: list[int]) -> set[int]:
        query = f"SELECT id FROM {table} WHERE id = ANY(%s)"
        return {number for (number,) in self._checkers[other].execute(query, [numbers])}

    def close(self) -> None:
        for engine in self._engines.values():
            if isinstance(engine, AsyncEngine):
                self.runner.run(engine.dispose())
            else:
                engine.dispose()
        self.runner.close()
        self._checkers[False].execute(f"DROP ROLE {self._role}")
        for checker in self._checkers.values():
            checker.close()
        self.shop.close()


@contextmanager
def databases_of_cases(migrated: MigratedDatabases) -> Iterator[Databases]:
    with migrated.database(shards=4) as shop_url, migrated.database(shards=4) as other_url:
        made = Databases(shop_url, other_url)
        try:
            yield made
        finally:
            made.close()
