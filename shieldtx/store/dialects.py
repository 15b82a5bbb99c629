"""Every difference between the databases, in one place.

PostgreSQL is what shieldtx is for; SQLite is enough for a user's own tests.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import NoneType
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Column,
    ColumnClause,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    LargeBinary,
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
    update,
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
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import ARRAY, Float, Interval, TypeEngine, UserDefinedType

from shieldtx.errors import ConfigurationError
from shieldtx.store import libpq
from shieldtx.store.columns import Timestamp

SINCE: Final = "held_since"
TRANSACTION: Final = "in_transaction"
"""Parameters of a statement that settles rows which were locked by `held`."""


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
    has_server = True
    """A connection is a socket to a server, which a forked process must not share."""
    patient_isolation = "READ COMMITTED"
    """Whoever waits for another transaction must see what it has committed."""
    single_isolation = "READ COMMITTED"
    """In AUTOCOMMIT a statement would run at the server's default level, which may be another."""
    snapshot_isolation = "REPEATABLE READ"
    """Several statements see the tables at one moment."""
    has_addresses = True
    """A row can be found by where it lies."""
    migrates_online = True
    """Large tables can be changed while others write to them."""
    has_sequences = True
    """The database numbers rows by itself."""

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

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        """Return how many bytes a text has; a large one is not read for it."""
        return func.octet_length(text_, type_=Integer())

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

    def texts(self, name: str) -> FromClause:
        """Return the list that a statement is run with as its parameter `name`, as rows `value`."""
        listed = func.unnest(bindparam(name, type_=_Listed(Text())))
        return listed.table_valued(sqla_column("value", Text())).render_derived()

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

    def has_ended(self, connection: Connection) -> bool:
        """Whether no transaction is open on the server, whatever SQLAlchemy takes for open."""
        status = connection.connection.dbapi_connection.info.transaction_status  # type: ignore[union-attr]
        return bool(status == _IDLE)

    def held(self, table: Table, condition: ColumnElement[bool]) -> Select[Any]:
        """Return a statement that locks rows as an UPDATE does: how many, when, where."""
        rows = select(table.c.event_id).where(condition).with_for_update(key_share=True)
        transaction = cast(func.pg_current_xact_id(), Text)
        return select(func.count(), self.now(), transaction).select_from(rows.cte("held"))

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        """Test whether the transaction is the one whose id is the parameter `name`."""
        current = cast(func.pg_current_xact_id_if_assigned(), Text)
        return current == bindparam(name, type_=Text())

    def begin_loan(self, connection: Connection) -> None:
        """Do nothing: the id of the transaction tells whether it has ended."""

    def end_loan(self, connection: Connection) -> bool:  # noqa: ARG002  one signature for both
        """Leave the answer to `is_transaction`."""
        return True

    def insert_new(self, table: Table) -> postgresql.Insert:
        """Return an INSERT that passes over rows which any unique key knows already."""
        return postgresql.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table) -> postgresql.Insert:
        """Return an INSERT to which ON CONFLICT ... DO UPDATE can be added."""
        return postgresql.insert(table)

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver would commit each statement by itself."""
        return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction has changed rows, or locked some."""
        xid = func.pg_current_xact_id_if_assigned()
        return bool(connection.scalar(select(xid.is_not(None))))

    def engine_arguments(self, url: URL, *, idle: timedelta, pooled: bool) -> dict[str, Any]:
        """Return how an engine of shieldtx's own connects: `libpq.session_options` explains `idle`.

        `pooled`: through a pooler that gives each transaction another connection to the server, so
        that nothing may be kept in a session: no options, no prepared statements.
        """
        arguments = libpq.connection_parameters(url)
        if pooled:
            arguments["prepare_threshold"] = None
        else:
            arguments["options"] = libpq.session_options(url, idle=idle)
        return {"connect_args": arguments, "isolation_level": self.patient_isolation}

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        """Have the server end this transaction when its client has been silent for `idle`."""
        milliseconds = int(idle.total_seconds() * 1000)
        connection.exec_driver_sql(
            f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
        )

    def is_useless(self, error: BaseException) -> bool:
        """Whether an error means that another connection may do better than this one.

        The server takes no writes (a former primary), is shutting down, or refuses the role.
        """
        state = getattr(error, "sqlstate", None) or ""
        return state == _READ_ONLY or state.startswith((_OPERATOR_INTERVENTION, _NOT_AUTHORISED))

    def migrates_alone(self, connection: Connection, schema: str | None) -> bool:
        """Hold back other migrations of the same tables until this transaction ends, if it can."""
        name = schema or connection.scalar(select(func.current_schema()))
        key = _lock_key(f"shieldtx migrates {name}")
        return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(key))))

    def compensate_alone(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Hold back the group's other compensations of an event until this transaction ends."""
        key = _lock_key(f"shieldtx group {group} compensates {event_id}")
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

    def is_deadlock(self, error: DBAPIError) -> bool:
        """Whether the server has ended a transaction to break a cycle of waits."""
        return getattr(error.orig, "sqlstate", None) == _DEADLOCK_DETECTED

    def first_of_each(
        self, left: FromClause, rows: Select[Any], column: str, limit: int | ColumnElement[int]
    ) -> tuple[FromClause, FromClause]:
        """Join each row of `left` with the first `limit` of `rows` that agree with it on `column`.

        Returns the join and the right side of it.
        """
        matching = rows.where(rows.selected_columns[column] == left.c[column])
        right = matching.limit(limit).lateral()
        return left.join(right, true()), right

    def beside(self, left: FromClause, first: Select[Any]) -> tuple[FromClause, ColumnElement[Any]]:
        """Look up one value for each row of `left`; `first` selects it, or no row for NULL.

        Returns what to select from, and the value. As a join, the server looks it up once for equal
        rows of `left` (Memoize); for a scalar subquery it would do so for each.
        """
        right = first.lateral()
        [value] = right.c
        return left.outerjoin(right, true()), value

    def estimate_by(self, column: Column[Any]) -> TextClause | None:
        """Return a SELECT of values of a column and how many rows the last ANALYZE saw of each."""
        return _ESTIMATE.bindparams(table=column.table.fullname, column=column.name)

    def made_for(self, outbox: Table, shard: Table) -> TextClause:  # noqa: ARG002  one signature for both
        """Return a SELECT of the number of shards, which needs no privilege; NULL: unknown.

        The constraint that refuses rows of other shards holds it.
        """
        return _MADE_FOR.bindparams(table=outbox.fullname)


class SqliteDialect:
    """SQLite 3.35 and later: one writer at a time, no schemas, clock by the library."""

    name = "sqlite"
    supports_schemas = False
    skips_locked = False
    has_server = False
    patient_isolation = "SERIALIZABLE"
    single_isolation = "AUTOCOMMIT"
    snapshot_isolation = "SERIALIZABLE"
    has_addresses = False
    migrates_online = False
    has_sequences = False

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

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        """Return how many bytes a text has."""
        return func.length(cast(text_, LargeBinary), type_=Integer())

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

    def texts(self, name: str) -> FromClause:
        """Return the list that a statement is run with as its parameter `name`, as rows `value`."""
        return func.json_each(bindparam(name, type_=JSON())).table_valued(
            sqla_column("value", Text())
        )

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

    def has_ended(self, connection: Connection) -> bool:
        """Whether the driver has no transaction open, whatever SQLAlchemy takes for open."""
        return not getattr(connection.connection.dbapi_connection, "in_transaction", True)

    def held(self, table: Table, condition: ColumnElement[bool]) -> ReturningUpdate[Any]:
        """Return a statement that takes the one writer lock, and a row for each row found."""
        statement = update(table).where(condition).values(lease_token=table.c.lease_token)
        return statement.returning(literal(1), self.now(), literal(""))

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        """Accept every transaction: SQLite has no ids of them."""
        return bindparam(name, type_=Text()) == ""

    def begin_loan(self, connection: Connection) -> None:
        """Set a savepoint, which ends with the transaction."""
        connection.exec_driver_sql(f"SAVEPOINT {_LOAN}")

    def end_loan(self, connection: Connection) -> bool:
        """Return whether the transaction is still that of `begin_loan`."""
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_LOAN}")
        except DBAPIError:
            return False
        return True

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

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the driver has begun a transaction, which it does for changes only."""
        return bool(getattr(connection.connection.dbapi_connection, "in_transaction", True))

    def engine_arguments(self, url: URL, *, idle: timedelta, pooled: bool) -> dict[str, Any]:  # noqa: ARG002  one signature for both
        """Wait for the one writer lock instead of failing at once."""
        return {"connect_args": {"timeout": 30}}

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        """Limit nothing: there is no server."""

    def is_useless(self, error: BaseException) -> bool:  # noqa: ARG002  one signature for both
        """Know of no server that another connection might reach."""
        return False

    def migrates_alone(self, connection: Connection, schema: str | None) -> bool:  # noqa: ARG002  one signature for both
        """Take the one writer lock: by itself, the driver begins no transaction for DDL."""
        if not getattr(connection.connection.dbapi_connection, "in_transaction", False):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        return True

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

    def is_deadlock(self, error: DBAPIError) -> bool:  # noqa: ARG002  one signature for all
        """There is one lock, so that there is no cycle."""
        return False

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

    def beside(self, left: FromClause, first: Select[Any]) -> tuple[FromClause, ColumnElement[Any]]:
        """Look up one value for each row of `left`; `first` selects it, or no row for NULL."""
        return left, first.scalar_subquery()

    def estimate_by(self, column: Column[Any]) -> TextClause | None:  # noqa: ARG002  one signature for both
        """Know nothing without counting."""
        return None

    def made_for(self, outbox: Table, shard: Table) -> Select[Any]:  # noqa: ARG002  one signature for both
        """Return a SELECT of the number of shards; 0: unknown."""
        return select(func.count()).select_from(shard)


def _lock_key(purpose: str) -> ColumnElement[int]:
    """Return the number of an advisory lock."""
    digest = hashlib.sha256(purpose.encode()).digest()
    return literal(int.from_bytes(digest[:8], "big", signed=True), BigInteger)


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


_IDLE, _IN_ERROR = 0, 3
"""libpq's PQTRANS_IDLE and PQTRANS_INERROR."""

_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE when `lock_timeout` is over."""

_DEADLOCK_DETECTED = "40P01"
"""PostgreSQL's SQLSTATE when a transaction is ended to break a deadlock."""

_READ_ONLY = "25006"
_OPERATOR_INTERVENTION = "57P"
_NOT_AUTHORISED = "28"
"""Classes of PostgreSQL's SQLSTATE, and one of them in full."""

_BUSY = "SQLITE_BUSY"
_LOAN = "shieldtx_loan"

# What the planner itself goes by.
_ESTIMATE = text("""
    SELECT counted.value, (reltuples * counted.share)::bigint AS rows
    FROM pg_class
    JOIN pg_namespace n ON n.oid = relnamespace
    JOIN pg_stats ON schemaname = nspname AND tablename = relname AND attname = :column
    CROSS JOIN unnest(most_common_vals::text::text[], most_common_freqs) AS counted (value, share)
    WHERE pg_class.oid = to_regclass(:table) AND reltuples > 0
""")

_MADE_FOR = text("""
    SELECT substring(pg_get_constraintdef(oid) FROM 'shard < ([0-9]+)')::integer
    FROM pg_constraint
    WHERE conrelid = to_regclass(:table) AND conname = 'shield_outbox_shard_check'
""")

StoreDialect = PostgresDialect | SqliteDialect

_KNOWN: dict[str, StoreDialect] = {"postgresql": PostgresDialect(), "sqlite": SqliteDialect()}


def is_known(dialect: SqlaDialect) -> bool:
    """Whether shieldtx has a dialect for a database."""
    return dialect.name in _KNOWN


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
