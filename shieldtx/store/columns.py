"""What the columns of the tables have in common: their types, checks and conditions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Integer,
    String,
    Text,
    TypeDecorator,
    Uuid,
)
from sqlalchemy.schema import conv


class Timestamp(TypeDecorator[datetime]):
    """An aware datetime in UTC, also where the database (SQLite) knows no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        """Hand UTC to the database."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        """Give UTC to the caller."""
        return None if value is None else (value if value.tzinfo else value.replace(tzinfo=UTC))


# SQLite counts rows by itself in a column of exactly INTEGER.
Sequence = BigInteger().with_variant(Integer(), "sqlite")


def one_of(table: str, column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    """Return the constraint by which a column holds one of these values."""
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=conv(f"{table}_{column}_check"))


def envelope_columns() -> list[Column[Any]]:
    """Make the columns that outbox and inbox have in common."""
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
