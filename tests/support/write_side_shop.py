"""A shop for tests of the write side: business rows, an outbox, and queries of committed rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, delete, event, select, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.outbox.outbox import Outbox
from shieldtx.store.dialects import Dialect, dialect_of
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.support.migrated_databases import migrated_sqlite

SHARDS = 4


class Base(DeclarativeBase):
    """The shop's own tables."""


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str | None] = mapped_column(unique=True)


class Shop:
    """A service that writes orders and their events into one database."""

    def __init__(self, url: str, *, schema: str | None = None, migrate: bool = True) -> None:
        self.engine = engine_for(url)
        if migrate:
            Schema(self.engine, schema=schema, shards=SHARDS).upgrade()
            Base.metadata.create_all(self.engine)
        self.tables = tables(schema)
        self.event_types = EventTypeRegistry()
        for name in ("order.placed", "order.paid"):
            self.event_types.declare(name)
        self.hints = 0
        self.traceparent: str | None = None
        self.outbox = Outbox(
            source="shop",
            event_types=self.event_types,
            writer=SqlOutboxWriter(self.tables, shards=SHARDS),
            traceparent=lambda: self.traceparent,
            after_commit=self._count_hint,
        )

    @property
    def on_postgres(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self.engine.dialect)

    def clear(self) -> None:
        """Empty the tables, in whatever state a test left them."""
        with self.engine.begin() as connection:
            for table in (*self.tables.metadata.tables.values(), *Base.metadata.tables.values()):
                if table is not self.tables.shard:
                    connection.execute(delete(table))
            connection.execute(update(self.tables.shard).values(owner=None, lease_until=None))

    def session(self, **options: Any) -> Session:
        return Session(self.engine, **options)

    def rows(self) -> list[dict[str, Any]]:
        """Return every committed row of the outbox, in the order of its sequence."""
        o = self.tables.outbox
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(o).order_by(o.c.seq)).mappings()]

    def events(self) -> list[str | None]:
        """Return the keys of the committed events, in the order of their sequence."""
        return [row["key"] for row in self.rows()]

    def orders(self) -> list[int]:
        """Return the committed orders."""
        with self.engine.connect() as connection:
            return list(connection.scalars(text("SELECT id FROM orders ORDER BY id")))

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """Collect the statements that reach the database's driver during the block."""
        gathered: list[str] = []

        def gather(conn: Connection, cursor: Any, statement: str, *rest: Any) -> None:
            gathered.append(statement)

        event.listen(self.engine, "before_cursor_execute", gather)
        yield gathered
        event.remove(self.engine, "before_cursor_execute", gather)

    def close(self) -> None:
        self.engine.dispose()

    def _count_hint(self) -> None:
        self.hints += 1


def sqlite_shop(path: Path) -> Shop:
    """Create a shop on a SQLite database of its own."""
    shop = Shop(migrated_sqlite(path, SHARDS), migrate=False)
    Base.metadata.create_all(shop.engine)
    return shop


def engine_for(url: str, **options: Any) -> Engine:
    """Create an engine; on SQLite, with transactions as SQLAlchemy's manual recommends."""
    engine = create_engine(url, **options)
    if engine.dialect.name == "sqlite":
        # By default, the driver begins no transaction before a SAVEPOINT.
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin)
    return engine


def _leave_transactions_to_us(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
