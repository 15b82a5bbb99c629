"""The types, checks, conditions and storage parameters that columns of several tables share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Integer,
    String,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    event,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import conv
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class _AsUtc(FunctionElement[datetime]):
    """A time in UTC.

    Drivers build a datetime in the time zone of the session. There the first or last hours of the
    calendar may be out of range. An application's own sessions may have any time zone.
    """

    name = "as_utc"
    inherit_cache = True

    def __init__(self, column: ColumnElement[datetime], type_: Timestamp) -> None:
        """Keep the type of the column: SQLAlchemy reads the result by this type."""
        super().__init__(column)
        self.type = type_


@compiles(_AsUtc)
def _as_it_is(element: _AsUtc, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_AsUtc, "postgresql")
def _as_utc(element: _AsUtc, compiler: SQLCompiler, **options: Any) -> str:
    return f"timezone('UTC', {compiler.process(element.clauses, **options)})"


class Timestamp(TypeDecorator[datetime]):
    """An aware datetime in UTC, whatever the time zone of the session, also if there is none."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        """Return the value in UTC."""
        return None if value is None else value.astimezone(UTC)

    def column_expression(self, column: ColumnElement[datetime]) -> ColumnElement[datetime]:
        """Make the database return the time in UTC."""
        return _AsUtc(column, self)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        """Return an aware datetime in UTC."""
        return None if value is None else (value if value.tzinfo else value.replace(tzinfo=UTC))


class InsideCalendar(Timestamp):
    """A time at least a day inside the calendar, which every session's time zone can represent.

    Reading such a column is a quarter faster, which counts for each event of each batch.
    """

    cache_ok = True

    def column_expression(self, column: ColumnElement[datetime]) -> ColumnElement[datetime]:
        """Make the database return the time unchanged."""
        return column


# SQLite numbers rows by itself only in a column of type INTEGER.
Sequence = BigInteger().with_variant(Integer(), "sqlite")


def one_of(table: str, column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    """Return a constraint that a column holds one of these values."""
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=conv(f"{table}_{column}_check"))


def envelope_columns() -> list[Column[Any]]:
    """Return new columns of an envelope, which outbox and inbox share."""
    return [
        Column("source", Text, nullable=False),
        Column("topic", Text, nullable=False),
        Column("event_type", Text, nullable=False),
        Column("tx_kind", String(8), nullable=False),
        Column("operation", String(6), nullable=False),
        Column("key", Text),
        Column("biz_key", Text),
        Column("payload", Text, nullable=False),
        Column("headers", Text),
        Column("traceparent", Text),
        Column("causation_id", Uuid),
        Column("causation_source", Text),
    ]


def where(predicate: Any) -> dict[str, Any]:
    """Return the options of a partial index."""
    return {"postgresql_where": predicate, "sqlite_where": predicate}


def set_storage(table: Table, **parameters: str) -> None:
    """Set PostgreSQL's storage parameters of a table after its creation.

    SQLAlchemy 2.0 has no parameters in CREATE TABLE.
    """
    listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    statement = DDL(f"ALTER TABLE %(fullname)s SET ({listed})")  # type: ignore[no-untyped-call]  # by SQLAlchemy
    event.listen(table, "after_create", statement.execute_if(dialect="postgresql"))
