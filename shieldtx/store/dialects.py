"""Every difference between the databases, in one place.

PostgreSQL is what shieldtx is for; SQLite is enough for a user's own tests.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import NoneType
from typing import Any
from uuid import UUID

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    ColumnClause,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    TextClause,
    TypeDecorator,
    and_,
    any_,
    bindparam,
    cast,
    false,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy import (
    Dialect as SqlaDialect,
)
from sqlalchemy import (
    column as sqla_column,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import ARRAY, Float, Interval, TypeEngine, UserDefinedType

from shieldtx.errors import ConfigurationError
from shieldtx.store.columns import Timestamp


class _TupleId(UserDefinedType[str]):
    """Where a version of a row lies: page and place."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "TID"


class _Listed(TypeDecorator[Sequence[Any]]):
    """An array that is written down here: the driver takes ten times as long for it.

    The database reads the text as a value of the array's type, once, not as text to be cast.
    """

    impl = ARRAY
    cache_ok = True

    def bind_processor(self, dialect: SqlaDialect) -> Callable[[Any], str | None]:  # noqa: ARG002  SQLAlchemy's signature
        """Return what writes a list down."""
        return lambda values: None if values is None else _array(values)


class PostgresDialect:
    """PostgreSQL 14 and later, through psycopg 3."""

    name = "postgresql"
    supports_schemas = True
    skips_locked = True
    """A claim can pass over rows that another transaction has locked."""
    patient_isolation = "READ COMMITTED"
    """Whoever waits for another transaction must see what it has committed."""
    snapshot_isolation = "REPEATABLE READ"
    """Several statements see the tables at one moment."""
    has_addresses = True
    """A row can be found by where it lies."""

    def now(self) -> ColumnElement[Any]:
        """Return the database's time at the start of the statement."""
        return func.statement_timestamp(type_=Timestamp())

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the time `delay` from now; a column element counts seconds."""
        if isinstance(delay, timedelta):
            return self.now() + literal(delay, Interval())
        return self.now() + cast(delay, Float) * literal_column("interval '1 second'", Interval())

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        """Return how many seconds from now `when` is."""
        return cast(func.extract("epoch", when - self.now()), Float)

    def among(
        self, column: ColumnElement[Any], values: Sequence[Any], type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        """Test membership with one array parameter, whatever the number of values."""
        array = bindparam(None, list(values), type_=ARRAY(type_), unique=True)
        return column == any_(array)

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        """Test membership in the rows of a query, which is run once and before all else."""
        return column == any_(func.array(rows.scalar_subquery()))

    def is_among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test whether an address is in the list that is the parameter `name`."""
        return column == any_(bindparam(name, type_=_Listed(_TupleId())))

    def address(self, table: FromClause) -> ColumnElement[Any]:
        """Return where the row lies, which costs no look into an index; an UPDATE changes it."""
        return ColumnClause("ctid", _TupleId(), _selectable=table)

    def digest(self, shards: FromClause) -> ColumnElement[int]:
        """Return a number for a set of shards and their epochs."""
        pairs = func.concat_ws(":", shards.c.shard, shards.c.epoch)
        listed = func.string_agg(pairs, aggregate_order_by(literal_column("','"), shards.c.shard))
        return select(func.hashtextextended(listed, 0, type_=BigInteger())).scalar_subquery()

    def sight(
        self, shards: FromClause, on_hold: ColumnElement[bool], chosen: FromClause
    ) -> ColumnElement[str]:
        """Return what the statement sees of its surroundings, for `sight_of`."""
        seen = func.pg_current_snapshot()
        running = (func.pg_snapshot_xmin(seen), func.pg_snapshot_xmax(seen))
        count = select(func.count()).select_from(chosen).scalar_subquery()
        parts = (self.digest(shards), cast(on_hold, Integer), *running, count)
        return select(func.concat_ws(" ", *parts, type_=Text())).scalar_subquery()

    def is_one_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test membership in the list that a statement is run with as its parameter `name`."""
        return column == any_(bindparam(name, type_=_Listed(column.type)))

    def insert_many_new(
        self,
        table: Table,
        columns: Sequence[Column[Any]],
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> postgresql.Insert:
        """Return an `insert_new` of as many rows as `many` is given, as one row source of arrays.

        The rows bring `columns` and `more`; of what they bring, the others are `computed`.
        """
        types = {column.name: column.type for column in columns} | dict(more)
        arrays = [bindparam(f"all_{name}", type_=_Listed(type_)) for name, type_ in types.items()]
        brought = (
            func.unnest(*arrays)
            .table_valued(*(sqla_column(n, type_) for n, type_ in types.items()), name="brought")
            .render_derived()
        )
        others = computed(brought.c)
        return self.insert_new(table).from_select(
            [*(column.name for column in columns), *others],
            select(*(brought.c[column.name] for column in columns), *others.values()),
        )

    def many(self, columns: Mapping[str, Sequence[Any]], **same: Any) -> dict[str, Any]:
        """Return the parameters of an `insert_many_new`; `same` are those of every row."""
        return {f"all_{name}": values for name, values in columns.items()} | same

    def many_unnumbered(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the same for a table without a column `seq`."""
        return self.many(columns)

    def is_aborted(self, connection: Connection) -> bool:
        """Whether an error has ended the transaction, so that its COMMIT would commit nothing."""
        status = connection.connection.dbapi_connection.info.transaction_status  # type: ignore[union-attr]
        return bool(status == _IN_ERROR)

    def insert_new(self, table: Table) -> postgresql.Insert:
        """Return an INSERT that passes over rows which any unique key knows already."""
        return postgresql.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table) -> postgresql.Insert:
        """Return an INSERT to which ON CONFLICT ... DO UPDATE can be added."""
        return postgresql.insert(table)

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver would commit each statement by itself."""
        return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))

    def connect_args(self, url: URL, idle: timedelta) -> dict[str, Any]:
        """Have the server end a transaction whose client has been silent for `idle`.

        A stopped process would otherwise keep its row locks, and its shards, for as long as it
        likes. Options of the URL, or of libpq's environment where it has none, stay and prevail.
        """
        milliseconds = int(idle.total_seconds() * 1000)
        given = url.query.get("options", os.environ.get("PGOPTIONS", ""))
        theirs = given if isinstance(given, str) else " ".join(given)
        ours = f"-c idle_in_transaction_session_timeout={milliseconds}"
        return {"options": f"{ours} {theirs}".strip()}

    def migrate_alone(self, connection: Connection, schema: str | None) -> None:
        """Hold back every other migration of the same tables until this transaction ends."""
        name = schema or connection.scalar(select(func.current_schema()))
        self._be_alone(connection, f"shieldtx migrates {name}")

    def compensate_alone(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Hold back the group's other compensations of an event until this transaction ends."""
        self._be_alone(connection, f"shieldtx group {group} compensates {event_id}")

    def _be_alone(self, connection: Connection, purpose: str) -> None:
        digest = hashlib.sha256(purpose.encode()).digest()
        key = literal(int.from_bytes(digest[:8], "big", signed=True), BigInteger)
        connection.execute(select(func.pg_advisory_xact_lock(key)))

    def next_in_sequence(self) -> dict[str, Any]:
        """Return what an INSERT says about `seq`: nothing, the database counts."""
        return {}

    def next_number(self) -> ColumnElement[int]:
        """Return what an UPDATE says about `seq` for the next number: as in an INSERT."""
        return literal_column("DEFAULT", BigInteger())

    def drawn_number(self) -> dict[str, Any]:
        """Return the parameters of an UPDATE of one row with `next_number`: none."""
        return {}

    @contextmanager
    def waiting_at_most(self, connection: Connection, patience: timedelta) -> Iterator[None]:
        """Wait for locks no longer than that, until the transaction ends."""
        milliseconds = max(1, int(patience.total_seconds() * 1000))
        connection.execute(select(func.set_config("lock_timeout", f"{milliseconds}ms", True)))  # noqa: FBT003  PostgreSQL's signature
        yield

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        """Whether a statement has waited for a lock as long as it may."""
        return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE

    def first_of_each(
        self, left: FromClause, rows: Select[Any], column: str, limit: int | ColumnElement[int]
    ) -> tuple[FromClause, FromClause]:
        """Join each row of `left` with the first `limit` of `rows` that agree with it on `column`.

        Returns the join and the right side of it.
        """
        matching = rows.where(rows.selected_columns[column] == left.c[column])
        right = matching.limit(limit).lateral()
        return left.join(right, true()), right

    def estimate_by(self, column: Column[Any]) -> TextClause | None:
        """Return a SELECT of values of a column and how many rows the last ANALYZE saw of each."""
        return _ESTIMATE.bindparams(table=column.table.fullname, column=column.name)


class SqliteDialect:
    """SQLite 3.35 and later: one writer at a time, no schemas, clock by the library."""

    name = "sqlite"
    supports_schemas = False
    skips_locked = False
    patient_isolation = "SERIALIZABLE"
    snapshot_isolation = "SERIALIZABLE"
    has_addresses = False

    # The form in which SQLAlchemy stores datetimes, so that text compares as time does.
    _format = "%Y-%m-%d %H:%M:%f000"
    # Starts at the time, so that a later process goes on above an earlier one.
    _numbers = itertools.count(time.time_ns())

    def now(self) -> ColumnElement[Any]:
        """Return the library's time."""
        return func.strftime(self._format, "now", type_=Timestamp())

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the time `delay` from now; a column element counts seconds."""
        seconds = literal(delay.total_seconds(), Float) if isinstance(delay, timedelta) else delay
        shift = func.printf("%+.3f seconds", cast(seconds, Float))
        return func.strftime(self._format, "now", shift, type_=Timestamp())

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        """Return how many seconds from now `when` is."""
        days = func.julianday(when) - func.julianday(self.now())
        return cast(days * 86400.0, Float)

    def among(
        self,
        column: ColumnElement[Any],
        values: Sequence[Any],
        type_: TypeEngine[Any],  # noqa: ARG002  one signature for both
    ) -> ColumnElement[bool]:
        """Test membership with a parameter for each value."""
        return column.in_(list(values))

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        """Test membership in the rows of a query."""
        return column.in_(rows)

    def is_among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Find nothing: rows have no addresses here."""
        return and_(column == bindparam(name), false())

    def address(self, table: FromClause) -> ColumnElement[Any]:
        """Return what stands for the address of a row: its id."""
        return table.c.event_id

    def digest(self, shards: FromClause) -> ColumnElement[int]:  # noqa: ARG002  one signature for both
        """Know no shards: each claim looks from the beginning."""
        return literal(0, BigInteger())

    def sight(
        self,
        shards: FromClause,  # noqa: ARG002  one signature for both
        on_hold: ColumnElement[bool],  # noqa: ARG002
        chosen: FromClause,  # noqa: ARG002
    ) -> ColumnElement[str]:
        """See nothing."""
        return literal("", Text())

    def is_one_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test membership in the list that a statement is run with as its parameter `name`."""
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def insert_many_new(
        self,
        table: Table,
        columns: Sequence[Column[Any]],  # noqa: ARG002  the rows name them
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> sqlite.Insert:
        """Return an `insert_new` of as many rows as `many` is given."""
        brought = {name: bindparam(name, type_=type_) for name, type_ in more.items()}
        return self.insert_new(table).values(dict(computed(brought)))

    def many(self, columns: Mapping[str, Sequence[Any]], **same: Any) -> list[dict[str, Any]]:
        """Return the parameters of an `insert_many_new`; `same` are those of every row."""
        rows = zip(*columns.values(), strict=True)
        return [
            dict(zip(columns, row, strict=True)) | self.next_in_sequence() | same for row in rows
        ]

    def many_unnumbered(self, columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
        """Return the same for a table without a column `seq`."""
        rows = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def is_aborted(self, connection: Connection) -> bool:  # noqa: ARG002  one signature for both
        """Know of no transaction that an error of one statement ends."""
        return False

    def insert_new(self, table: Table) -> sqlite.Insert:
        """Return an INSERT that passes over rows which any unique key knows already."""
        return sqlite.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table) -> sqlite.Insert:
        """Return an INSERT to which ON CONFLICT ... DO UPDATE can be added."""
        return sqlite.insert(table)

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver would commit each statement by itself.

        Not inside a BEGIN sent by hand, which is how SQLAlchemy's manual has savepoints work here.
        """
        driver = connection.connection.dbapi_connection
        by_itself = getattr(driver, "autocommit", None) is True  # Python 3.12 and later
        by_itself = by_itself or getattr(driver, "isolation_level", "") is None
        return by_itself and not getattr(driver, "in_transaction", False)

    def connect_args(self, url: URL, idle: timedelta) -> dict[str, Any]:  # noqa: ARG002  one signature for both
        """Wait for the one writer lock instead of failing at once."""
        return {"timeout": 30}

    def migrate_alone(self, connection: Connection, schema: str | None) -> None:  # noqa: ARG002  one signature for both
        """Take the one writer lock: by itself, the driver begins no transaction for DDL."""
        if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def compensate_alone(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Hold back nobody: there is one writer at a time."""

    def next_in_sequence(self) -> dict[str, Any]:
        """Return the next number: SQLite counts only primary keys by itself."""
        return {"seq": next(self._numbers)}

    def next_number(self) -> ColumnElement[int]:
        """Return what an UPDATE of one row says about `seq` for the next number."""
        return bindparam("drawn_number", type_=Integer())

    def drawn_number(self) -> dict[str, Any]:
        """Return the parameters of an UPDATE of one row with `next_number`."""
        return {"drawn_number": next(self._numbers)}

    @contextmanager
    def waiting_at_most(self, connection: Connection, patience: timedelta) -> Iterator[None]:
        """Wait for the one writer lock no longer than that, inside the block."""
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        milliseconds = max(1, int(patience.total_seconds() * 1000))
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        """Whether a statement has waited for the one writer lock as long as it may."""
        return getattr(error.orig, "sqlite_errorname", "").startswith(_BUSY)

    def first_of_each(
        self,
        left: FromClause,
        rows: Select[Any],
        column: str,
        limit: int | ColumnElement[int],  # noqa: ARG002  no LATERAL here
    ) -> tuple[FromClause, FromClause]:
        """Join each row of `left` with the `rows` that agree with it on `column`, all of them."""
        right = rows.subquery()
        return left.join(right, right.c[column] == left.c[column]), right

    def estimate_by(self, column: Column[Any]) -> TextClause | None:  # noqa: ARG002  one signature for both
        """Know nothing without counting."""
        return None


_SEPARATOR = "\x1f"


def _array(values: Sequence[Any]) -> str:
    """Write a PostgreSQL array of one dimension.

    What needs quotes is quoted in all elements at once, where none of them holds the separator.
    """
    types = set(map(type, values))
    if types == {UUID}:
        return "{" + ",".join([f"{value.int:032x}" for value in values]) + "}"
    if NoneType not in types:
        texts = list(map(str, values))
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR) == len(texts) - 1:
            return '{"' + _quoted(joined).replace(_SEPARATOR, '","') + '"}'
    elements = ["NULL" if value is None else f'"{_quoted(str(value))}"' for value in values]
    return "{" + ",".join(elements) + "}"


def _quoted(text_: str) -> str:
    return text_.replace("\\", "\\\\").replace('"', '\\"')


_IN_ERROR = 3
"""libpq's PQTRANS_INERROR."""

_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE when `lock_timeout` is over."""

_BUSY = "SQLITE_BUSY"

# What the planner itself goes by.
_ESTIMATE = text("""
    SELECT counted.value, (reltuples * counted.share)::bigint AS rows
    FROM pg_class
    JOIN pg_namespace n ON n.oid = relnamespace
    JOIN pg_stats ON schemaname = nspname AND tablename = relname AND attname = :column
    CROSS JOIN unnest(most_common_vals::text::text[], most_common_freqs) AS counted (value, share)
    WHERE pg_class.oid = to_regclass(:table) AND reltuples > 0
""")

StoreDialect = PostgresDialect | SqliteDialect

_KNOWN: dict[str, StoreDialect] = {"postgresql": PostgresDialect(), "sqlite": SqliteDialect()}


def dialect_of(dialect: SqlaDialect) -> StoreDialect:
    """Return what shieldtx knows of a database; raises ConfigurationError for an unknown one."""
    return dialect_named(dialect.name)


def dialect_named(name: str) -> StoreDialect:
    """Return what shieldtx knows of a database, by SQLAlchemy's name of it; raises as above."""
    known = _KNOWN.get(name)
    if known is None:
        raise ConfigurationError(
            f"shieldtx has no dialect for {name!r}: use one of {', '.join(sorted(_KNOWN))}"
        )
    return known
