"""SQLite, which is sufficient for a user's own tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    LargeBinary,
    Select,
    Table,
    Text,
    TextClause,
    Update,
    and_,
    bindparam,
    cast,
    false,
    func,
    literal,
    select,
    text,
    update,
)
from sqlalchemy import (
    column as sqla_column,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import Float, TypeEngine

from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects.protocol import OF_MARK, Dialect

_BUSY = "SQLITE_BUSY"
_LOAN = "shieldtx_loan"
_MAKE_EFFECTS = text(
    "CREATE TEMP TABLE IF NOT EXISTS shieldtx_effect (id INTEGER PRIMARY KEY, number INTEGER)"
)
_MARK_EFFECT = text("INSERT OR REPLACE INTO temp.shieldtx_effect VALUES (1, :number)")
_MARKED_EFFECT = text("SELECT number FROM temp.shieldtx_effect")


class SqliteDialect(Dialect):
    """SQLite 3.35 and later: one writer at a time, no schemas, clock by the library."""

    name = "sqlite"
    supports_schemas = False
    skips_locked = False
    has_server = False
    has_addresses = False
    has_sequences = False
    migrates_online = False
    engine_isolation = "SERIALIZABLE"
    autocommit_isolation = "AUTOCOMMIT"
    snapshot_isolation = "SERIALIZABLE"

    # The format in which SQLAlchemy stores datetimes, so that text has the order of time.
    _format = "%Y-%m-%d %H:%M:%f000"
    # Starts at the time, so that a later process draws higher numbers than an earlier process.
    _numbers = itertools.count(time.time_ns())

    def now(self) -> ColumnElement[Any]:
        return func.strftime(self._format, "now", type_=Timestamp())

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        seconds = literal(delay.total_seconds(), Float) if isinstance(delay, timedelta) else delay
        shift = func.printf("%+.3f seconds", cast(seconds, Float))
        return func.strftime(self._format, "now", shift, type_=Timestamp())

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        days = func.julianday(when) - func.julianday(self.now())
        return cast(days * 86400.0, Float)

    def is_in(
        self, column: ColumnElement[Any], values: Sequence[Any], type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        return column.in_(list(values))

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        return column.in_(rows)

    def is_in_parameter(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def has_address_in(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        # Rows have no addresses here.
        return and_(column == bindparam(name), false())

    def text_rows(self, name: str) -> FromClause:
        return func.json_each(bindparam(name, type_=JSON())).table_valued(
            sqla_column("value", Text())
        )

    def text_of(self, name: str, key: ColumnElement[str]) -> ColumnElement[str]:
        path = literal('$."') + key + '"'
        return func.json_extract(bindparam(name, type_=JSON()), path, type_=Text())

    def inside_calendar(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        return time

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        return func.length(cast(text_, LargeBinary), type_=Integer())

    def position_of(self, text_: ColumnElement[str], part: str) -> ColumnElement[int]:
        return func.instr(text_, part, type_=Integer())

    def address(self, table: FromClause) -> ColumnElement[Any]:
        return table.c.event_id

    def digest(self, shards: FromClause) -> ColumnElement[int]:
        # Without snapshots, each claim starts at the beginning.
        return literal(0, BigInteger())

    def claim_snapshot(
        self, shards: FromClause, has_blocked_keys: ColumnElement[bool], chosen: FromClause
    ) -> ColumnElement[str | None]:
        return literal(None, Text())

    def first_of_each(
        self,
        left: FromClause,
        rows: Select[Any],
        column: str,
        limit: int | ColumnElement[int],
    ) -> tuple[FromClause, FromClause]:
        right = rows.subquery()
        return left.join(right, right.c[column] == left.c[column]), right

    def look_up(
        self, left: FromClause, first: Select[Any]
    ) -> tuple[FromClause, ColumnElement[Any]]:
        return left, first.scalar_subquery()

    def estimated_counts(self, column: Column[Any]) -> TextClause | None:
        return None

    def shard_count(self, outbox: Table, shard: Table) -> Select[Any]:
        return select(func.count()).select_from(shard)

    def insert_new(self, table: Table) -> sqlite.Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table) -> sqlite.Insert:
        return sqlite.insert(table)

    def insert_new_rows(
        self,
        table: Table,
        columns: Sequence[Column[Any]],
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> sqlite.Insert:
        brought = {name: bindparam(name, type_=type_) for name, type_ in more.items()}
        return self.insert_new(table).values(dict(computed(brought)))

    def rows_parameters(
        self, columns: Mapping[str, Sequence[Any]], **same: Any
    ) -> list[dict[str, Any]]:
        rows = zip(*columns.values(), strict=True)
        return [
            dict(zip(columns, row, strict=True)) | self.next_in_sequence() | same for row in rows
        ]

    def unnumbered_rows_parameters(
        self, columns: Mapping[str, Sequence[Any]]
    ) -> list[dict[str, Any]]:
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def next_in_sequence(self) -> dict[str, Any]:
        # SQLite numbers only primary keys by itself.
        return {"seq": next(self._numbers)}

    def next_number(self) -> ColumnElement[int]:
        return bindparam("next_number", type_=Integer())

    def next_number_parameters(self) -> dict[str, Any]:
        return {"next_number": next(self._numbers)}

    def lock_rows(self, table: Table, condition: ColumnElement[bool]) -> ReturningUpdate[Any]:
        # Any UPDATE takes the write lock.
        statement = update(table).where(condition).values(lease_token=table.c.lease_token)
        return statement.returning(literal(1), self.now(), literal(""))

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        return bindparam(name, type_=Text()) == ""

    def mark_transaction(self, connection: Connection) -> None:
        # A savepoint ends with its transaction.
        connection.exec_driver_sql(f"SAVEPOINT {_LOAN}")

    def is_marked_transaction(self, connection: Connection) -> bool:
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_LOAN}")
        except DBAPIError:
            return False
        return True

    def mark_effect(self, connection: Connection, number: int) -> None:
        # A rollback undoes temporary tables like others.
        connection.execute(_MAKE_EFFECTS, execution_options={OF_MARK: True})
        connection.execute(_MARK_EFFECT, {"number": number}, execution_options={OF_MARK: True})

    def has_effect(self, connection: Connection, number: int) -> bool:
        try:
            found = connection.scalar(_MARKED_EFFECT)
        except DBAPIError:
            return False
        return bool(found == number)

    def has_ended(self, connection: Connection) -> bool:
        return not getattr(connection.connection.dbapi_connection, "in_transaction", True)

    def is_aborted(self, connection: Connection) -> bool:
        return False

    def has_made_temporary(self, connection: Connection) -> bool:
        return False

    def returning_made_temporary(self, settled: Update) -> Update:
        return settled

    def keeps_temporary(self, connection: Connection) -> bool:
        return False

    def may_have_written(self, connection: Connection) -> bool:
        # The driver begins a transaction for changes only.
        return bool(getattr(connection.connection.dbapi_connection, "in_transaction", True))

    def is_autocommit(self, connection: Connection) -> bool:
        # Not inside a BEGIN sent by hand, which SQLAlchemy's manual recommends for savepoints.
        driver = connection.connection.dbapi_connection
        by_itself = getattr(driver, "autocommit", None) is True  # Python 3.12 and later
        by_itself = by_itself or getattr(driver, "isolation_level", "") is None
        return by_itself and not getattr(driver, "in_transaction", False)

    def try_migration_lock(self, connection: Connection, schema: str | None) -> bool:
        # By itself, the driver begins no transaction for DDL. BEGIN IMMEDIATE takes the write lock.
        if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return True

    def lock_compensation(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Do nothing: there is one writer at a time."""

    @contextmanager
    def lock_timeout(self, connection: Connection, patience: timedelta) -> Iterator[None]:
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        milliseconds = max(1, int(patience.total_seconds() * 1000))
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def engine_arguments(self, url: URL, *, pooled: bool) -> dict[str, Any]:
        # Waits for the write lock instead of failing at once.
        return {"connect_args": {"timeout": 30}}

    def session_arguments(self, url: URL, idle: timedelta) -> dict[str, Any]:
        return {}

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        """Do nothing: there is no server."""

    def table_identity(self, connection: Connection, table: Table) -> tuple[object, ...]:
        databases = connection.exec_driver_sql("PRAGMA database_list").all()
        name = table.schema or "main"
        # A database in memory has no file.
        return (next((row.file for row in databases if row.name == name), "") or None,)

    def needs_another_connection(self, error: BaseException) -> bool:
        return False

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlite_errorname", "").startswith(_BUSY)

    def is_deadlock(self, error: DBAPIError) -> bool:
        # With one lock there is no cycle.
        return False

    def is_conflict(self, error: DBAPIError) -> bool:
        # A transaction that has read, and would write after another transaction has written.
        return self.is_lock_timeout(error)
