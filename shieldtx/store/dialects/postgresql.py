"""PostgreSQL, the database of production services."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
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
    any_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy import (
    column as sqla_column,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import ARRAY, Float, Interval, TypeEngine

from shieldtx.store import libpq
from shieldtx.store.columns import Timestamp
from shieldtx.store.dialects.postgresql_identity import identity_of_table
from shieldtx.store.dialects.postgresql_state import Transactions
from shieldtx.store.dialects.postgresql_types import ArrayText, RowAddress
from shieldtx.store.dialects.protocol import Dialect

_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE when `lock_timeout` has expired."""

_DEADLOCK_DETECTED = "40P01"
"""PostgreSQL's SQLSTATE of a transaction that was aborted to break a deadlock."""

_SERIALIZATION_FAILURE = "40001"
"""PostgreSQL's SQLSTATE of a conflict between transactions at REPEATABLE READ or above."""

_READ_ONLY = "25006"
_OPERATOR_INTERVENTION = "57P"
_NOT_AUTHORISED = "28"
"""PostgreSQL's SQLSTATE: one full code, and two prefixes."""

_EARLIEST = literal_column("timestamptz '0001-01-02 00:00:00+00'", Timestamp())
_LATEST = literal_column("timestamptz '9998-12-31 00:00:00+00'", Timestamp())
"""PostgreSQL has times outside this range, such as `infinity`; they are read as these limits."""

# The statistics that the planner itself uses.
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


class PostgresDialect(Transactions, Dialect):
    """PostgreSQL 14 and later, through psycopg 3."""

    name = "postgresql"
    supports_schemas = True
    skips_locked = True
    has_server = True
    has_addresses = True
    has_sequences = True
    migrates_online = True
    engine_isolation = "READ COMMITTED"
    # In AUTOCOMMIT a statement would run at the server's default level, which may differ.
    autocommit_isolation = "READ COMMITTED"
    snapshot_isolation = "REPEATABLE READ"

    def now(self) -> ColumnElement[Any]:
        return func.statement_timestamp(type_=Timestamp())

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        if isinstance(delay, timedelta):
            return self.now() + literal(delay, Interval())
        return self.now() + cast(delay, Float) * literal_column("interval '1 second'", Interval())

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        return cast(func.extract("epoch", when - self.now()), Float)

    def is_in(
        self, column: ColumnElement[Any], values: Sequence[Any], type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        array = bindparam(None, list(values), type_=ARRAY(type_), unique=True)
        return column == any_(array)

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        # As an array: the query then runs once and first.
        return column == any_(func.array(rows.scalar_subquery()))

    def is_in_parameter(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column == any_(bindparam(name, type_=ArrayText(column.type)))

    def has_address_in(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return column == any_(bindparam(name, type_=ArrayText(RowAddress())))

    def text_rows(self, name: str) -> FromClause:
        listed = func.unnest(bindparam(name, type_=ArrayText(Text())))
        return listed.table_valued(sqla_column("value", Text())).render_derived()

    def text_of(self, name: str, key: ColumnElement[str]) -> ColumnElement[str]:
        return func.jsonb_extract_path_text(
            bindparam(name, type_=postgresql.JSONB()), key, type_=Text()
        )

    def inside_calendar(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        return case((time < _EARLIEST, _EARLIEST), (time > _LATEST, _LATEST), else_=time)

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        # The server does not read a large text for its length.
        return func.octet_length(text_, type_=Integer())

    def position_of(self, text_: ColumnElement[str], part: str) -> ColumnElement[int]:
        return func.strpos(text_, part, type_=Integer())

    def address(self, table: FromClause) -> ColumnElement[Any]:
        # Needs no index lookup.
        return ColumnClause("ctid", RowAddress(), _selectable=table)

    def digest(self, shards: FromClause) -> ColumnElement[int]:
        pairs = func.concat_ws(":", shards.c.shard, shards.c.epoch)
        listed = func.string_agg(pairs, aggregate_order_by(literal_column("','"), shards.c.shard))
        return select(func.hashtextextended(listed, 0, type_=BigInteger())).scalar_subquery()

    def claim_snapshot(
        self, shards: FromClause, has_blocked_keys: ColumnElement[bool], chosen: FromClause
    ) -> ColumnElement[str | None]:
        seen = func.pg_current_snapshot()
        fields: dict[str, ColumnElement[Any]] = {
            "shards": self.digest(shards),
            "has_blocked_keys": has_blocked_keys,
            "oldest_running": func.pg_snapshot_xmin(seen),
            "next_to_run": func.pg_snapshot_xmax(seen),
            "chosen": select(func.count()).select_from(chosen).scalar_subquery(),
        }
        named = chain.from_iterable((literal_column(f"'{n}'"), v) for n, v in fields.items())
        # One text, which the relay reads once: every row of a claim contains it. Five columns in
        # each of 1,000 rows would take the relay a tenth longer.
        return select(cast(func.json_build_object(*named), Text)).scalar_subquery()

    def first_of_each(
        self, left: FromClause, rows: Select[Any], column: str, limit: int | ColumnElement[int]
    ) -> tuple[FromClause, FromClause]:
        matching = rows.where(rows.selected_columns[column] == left.c[column])
        right = matching.limit(limit).lateral()
        return left.join(right, true()), right

    def look_up(
        self, left: FromClause, first: Select[Any]
    ) -> tuple[FromClause, ColumnElement[Any]]:
        # A join: the server looks up equal rows of `left` once (Memoize), while a scalar subquery
        # would run for each row.
        right = first.lateral()
        [value] = right.c
        return left.outerjoin(right, true()), value

    def estimated_counts(self, column: Column[Any]) -> TextClause | None:
        return _ESTIMATE.bindparams(table=column.table.fullname, column=column.name)

    def shard_count(self, outbox: Table, shard: Table) -> TextClause:
        # The constraint that rejects rows of other shards contains the number; reading the
        # constraint needs no privilege.
        return _MADE_FOR.bindparams(table=outbox.fullname)

    def insert_new(self, table: Table) -> postgresql.Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table) -> postgresql.Insert:
        return postgresql.insert(table)

    def insert_new_rows(
        self,
        table: Table,
        columns: Sequence[Column[Any]],
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> postgresql.Insert:
        types = {column.name: column.type for column in columns} | dict(more)
        arrays = [bindparam(f"all_{name}", type_=ArrayText(type_)) for name, type_ in types.items()]
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

    def rows_parameters(self, columns: Mapping[str, Sequence[Any]], **same: Any) -> dict[str, Any]:
        return {f"all_{name}": values for name, values in columns.items()} | same

    def unnumbered_rows_parameters(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        return self.rows_parameters(columns)

    def next_in_sequence(self) -> dict[str, Any]:
        return {}

    def next_number(self) -> ColumnElement[int]:
        # As in an INSERT, the database draws the number.
        return literal_column("DEFAULT", BigInteger())

    def next_number_parameters(self) -> dict[str, Any]:
        return {}

    def lock_rows(self, table: Table, condition: ColumnElement[bool]) -> Select[Any]:
        rows = select(table.c.event_id).where(condition).with_for_update(key_share=True)
        transaction = cast(func.pg_current_xact_id(), Text)
        return select(func.count(), self.now(), transaction).select_from(rows.cte("held"))

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        current = cast(func.pg_current_xact_id_if_assigned(), Text)
        return current == bindparam(name, type_=Text())

    def try_migration_lock(self, connection: Connection, schema: str | None) -> bool:
        name = schema or connection.scalar(select(func.current_schema()))
        key = _lock_key(f"shieldtx migrates {name}")
        return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(key))))

    def lock_compensation(self, connection: Connection, group: str, event_id: UUID) -> None:
        key = _lock_key(f"shieldtx group {group} compensates {event_id}")
        connection.execute(select(func.pg_advisory_xact_lock(key)))

    @contextmanager
    def lock_timeout(self, connection: Connection, patience: timedelta) -> Iterator[None]:
        milliseconds = max(1, int(patience.total_seconds() * 1000))
        connection.execute(select(func.set_config("lock_timeout", f"{milliseconds}ms", True)))  # noqa: FBT003  PostgreSQL's signature
        yield

    def engine_arguments(self, url: URL, *, pooled: bool) -> dict[str, Any]:
        arguments = libpq.connection_parameters(url)
        if pooled:
            arguments["prepare_threshold"] = None
        return {"connect_args": arguments, "isolation_level": self.engine_isolation}

    def session_arguments(self, url: URL, idle: timedelta) -> dict[str, Any]:
        return {"options": libpq.session_options(url, idle=idle)}

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        milliseconds = libpq.limit_ms(idle)
        limits = [f"set_config('{name}', '{milliseconds}', true)" for name in libpq.SILENCE_LIMITS]
        connection.exec_driver_sql(f"SELECT {', '.join(limits)}")

    def table_identity(self, connection: Connection, table: Table) -> tuple[object, ...]:
        return identity_of_table(connection, table)

    def needs_another_connection(self, error: BaseException) -> bool:
        # The server takes no writes (a former primary), is shutting down, or refuses the role.
        state = getattr(error, "sqlstate", None) or ""
        return state == _READ_ONLY or state.startswith((_OPERATOR_INTERVENTION, _NOT_AUTHORISED))

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE

    def is_deadlock(self, error: DBAPIError) -> bool:
        return getattr(error.orig, "sqlstate", None) == _DEADLOCK_DETECTED

    def is_conflict(self, error: DBAPIError) -> bool:
        state = getattr(error.orig, "sqlstate", None)
        return state in {_DEADLOCK_DETECTED, _SERIALIZATION_FAILURE}


def _lock_key(purpose: str) -> ColumnElement[int]:
    """Return the number of an advisory lock."""
    digest = hashlib.sha256(purpose.encode()).digest()
    return literal(int.from_bytes(digest[:8], "big", signed=True), BigInteger)
