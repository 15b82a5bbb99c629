"""Two services' databases full of the events of `reconcile_events`, written by the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psycopg
from psycopg import Connection, sql
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from benchmarks.data.reconcile_events import (
    ABSENT,
    COMPENSATOR,
    GROUP,
    LIMIT,
    STATEMENTS,
    STEP_MS,
    TYPES,
    Line,
)
from benchmarks.harness.samples import BenchmarkFailed
from shieldtx.domain.states import TxKind
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.store.schema import Schema

CHUNK: Final = 250_000
SAMPLE: Final = 100

LOADING: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Then a table that is truncated and filled in one transaction needs no write-ahead log.
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "4GB",
        # Its work is done before, so that it cannot disturb a measurement.
        "autovacuum": "off",
    }
)
"""Settings of a server that is filled and then only read."""


class ReconcileDatabases:
    """The two databases of a given number of events."""

    def __init__(self, server: EmbeddedPostgres, *, name: str, rows: int) -> None:
        self.rows = rows
        self._server = server
        self._names = {service: f"{name}_{service}" for service in ("orders", "stock")}
        ended = time.time_ns() // 1_000_000 - 26 * 3_600_000
        self.line = Line(begin_ms=ended - rows * STEP_MS)

    def create(self, say: Callable[[str], None]) -> None:
        """Create, fill and vacuum both databases, each by a process of the server."""
        for name in self._names.values():
            self._server.create_database(name)
            engine = create_engine(self._server.url(name), poolclass=NullPool)
            Schema(engine).upgrade()
        self._on_both(lambda service: self._fill(service, say))

    def extend(self, rows: int) -> None:
        """Write further events, as relays and consumers would have over the next day."""
        begin, end = self.rows, self.rows + rows
        self._on_both(lambda service: self._add(service, begin, end))
        self.rows = end

    def drop(self) -> None:
        """Drop both databases to free their space."""
        for name in self._names.values():
            self._server.drop_database(name)

    def request(self, folder: Path, **changes: Any) -> ReconcileRequest:
        """Return the request that reconciles the two databases."""
        groups = {
            "orders": ExpectedGroup(name=COMPENSATOR, kind=TxKind.ROLLBACK),
            "stock": ExpectedGroup(name=GROUP, topics=TYPES, max_attempts=LIMIT),
        }
        services = tuple(
            ServiceDatabase(name=service, url=self._server.url(name), groups=(groups[service],))
            for service, name in self._names.items()
        )
        return ReconcileRequest(services=services, folder=folder, **changes)

    def bytes(self) -> int:
        """Return the size of the two tables, without their indexes."""
        total = 0
        for service, (table, _) in ABSENT.items():
            with self.connect(service) as connection:
                total += _one(connection, f"SELECT pg_relation_size('{table}')")
        return total

    def scan(self) -> float:
        """Read both tables completely, concurrently, and return the seconds it took."""
        began = time.monotonic()
        self._on_both(self._scan)
        return time.monotonic() - began

    def _scan(self, service: str) -> None:
        table, _ = ABSENT[service]
        with self.connect(service) as connection:
            # No index has this column, so that the server reads the rows themselves.
            query = f"SELECT count(*) FROM {table} WHERE attempts < 0"  # noqa: S608
            _one(connection, query)

    def _on_both(self, work: Callable[[str], None]) -> None:
        with ThreadPoolExecutor(len(self._names)) as pool:
            for done in [pool.submit(work, service) for service in self._names]:
                done.result()

    @contextmanager
    def connect(self, service: str) -> Iterator[Connection]:
        """Connect to the database of a service, each statement a separate transaction."""
        dsn = self._server.url(self._names[service]).replace("+psycopg", "")
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection

    def _fill(self, service: str, say: Callable[[str], None]) -> None:
        with self.connect(service) as connection:
            connection.execute("SET maintenance_work_mem = '512MB'")
            with connection.transaction():
                indexes = _drop_indexes(connection)
                connection.execute("TRUNCATE shield_outbox, shield_inbox")
                for begin in range(0, self.rows, CHUNK):
                    say(f"{service}: {begin:,} of {self.rows:,} rows written")
                    self._write(connection, service, begin, min(begin + CHUNK, self.rows))
                say(f"{service}: building indexes")
                for definition in indexes:
                    connection.execute(definition)
            say(f"{service}: vacuum and checkpoint")
            connection.execute("VACUUM (FREEZE, ANALYZE)")
            connection.execute("CHECKPOINT")
            self._require_planted(connection, service, 0, self.rows)

    def _add(self, service: str, begin: int, end: int) -> None:
        with self.connect(service) as connection:
            self._write(connection, service, begin, end)
            connection.execute("ANALYZE")
            self._require_planted(connection, service, begin, end)

    def _write(self, connection: Connection, service: str, begin: int, end: int) -> None:
        bounds = {"begin": begin, "end": end, "begin_ms": self.line.begin_ms}
        for statement in STATEMENTS[service]:
            connection.execute(statement, bounds)

    def _require_planted(self, connection: Connection, service: str, begin: int, end: int) -> None:
        """Raise BenchmarkFailed unless the database numbers its events as this module does."""
        table, absent = ABSENT[service]
        numbers = {*range(begin, min(end, begin + SAMPLE)), *self.line.flawed(begin, end)}
        ids = [self.line.event_id(n) for n in numbers if self.line.flaw_of(n) not in absent]
        query = f"SELECT count(*) FROM {table} WHERE event_id = ANY(%s::uuid[])"  # noqa: S608
        found = _one(connection, query, ids)
        if found != len(ids):
            raise BenchmarkFailed(f"of {len(ids)} events {found} are in the books of {service}")


def _one(connection: Connection, query: str, *parameters: Any) -> int:
    row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return int(row[0])


def _drop_indexes(connection: Connection) -> list[sql.Composed]:
    """Drop the indexes of outbox and inbox, and return the statements that create them."""
    keys = connection.execute(_KEYS).fetchall()
    for table, name, _ in keys:
        connection.execute(
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(
                sql.Identifier(table), sql.Identifier(name)
            )
        )
    others = connection.execute(_INDEXES).fetchall()
    for name, _ in others:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(name)))
    return [
        *(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(
                sql.Identifier(table), sql.Identifier(name), sql.SQL(definition)
            )
            for table, name, definition in keys
        ),
        *(sql.SQL("{}").format(sql.SQL(definition)) for _, definition in others),
    ]


_KEYS: Final = """
SELECT c.relname, k.conname, pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
WHERE c.relname IN ('shield_outbox', 'shield_inbox') AND k.contype = 'p'
"""
_INDEXES: Final = """
SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('shield_outbox', 'shield_inbox')
"""
