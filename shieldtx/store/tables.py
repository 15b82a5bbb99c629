"""The tables, as SQLAlchemy sees them: `migrations/` makes them, and a test compares both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    FromClause,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
    Uuid,
    and_,
    false,
    not_,
)
from sqlalchemy.schema import conv
from sqlalchemy.types import LargeBinary

from shieldtx.states import INBOX, OUTBOX, Operation, TxKind

# What is named below is named by `conv`: a host's metadata may have a naming convention of its own.
NAMING = {"pk": "%(table_name)s_pkey"}

# A row is updated at least twice and deleted once, and few rows are open at a time. Vacuum has to
# follow those few: PostgreSQL's default waits for dead rows worth 20 % of the table, settled rows
# in their retention included, and until then claims walk over the dead entries of their index.
_VACUUM_OFTEN = {"autovacuum_vacuum_scale_factor": "0.01"}


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
_Sequence = BigInteger().with_variant(Integer(), "sqlite")


def _one_of(table: str, column: str, values: Iterable[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=conv(f"{table}_{column}_check"))


def _envelope_columns() -> list[Column[Any]]:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """All tables of one schema."""

    metadata: MetaData
    outbox: Table
    inbox: Table
    shard: Table
    relay: Table
    parked: Table
    audit: Table


def tables(schema: str | None = None, metadata: MetaData | None = None) -> Tables:
    """Describe the tables in `schema` (None: the connection's own), in a host's metadata if any."""
    metadata = metadata or MetaData(schema=schema, naming_convention=NAMING)
    return Tables(
        metadata=metadata,
        outbox=_outbox(metadata, schema),
        inbox=_inbox(metadata, schema),
        shard=_shard(metadata, schema),
        relay=_relay(metadata, schema),
        parked=_parked(metadata, schema),
        audit=_audit(metadata, schema),
    )


def _outbox(metadata: MetaData, schema: str | None) -> Table:
    table = Table(
        "shield_outbox",
        metadata,
        Column("event_id", Uuid, primary_key=True),
        Column("seq", _Sequence, Identity(always=True), nullable=False),
        Column("shard", SmallInteger, nullable=False),
        *_envelope_columns(),
        Column("status", String(16), nullable=False),
        Column("attempts", Integer, nullable=False, server_default="0"),
        # A waiting row (a chosen delay, or a retry) is out of the main line of its shard.
        Column("waiting", Boolean, nullable=False),
        # Of a waiting row: later rows of its key stay behind it. So a retry does, a delay does not.
        Column("holds_key", Boolean, nullable=False),
        Column("due_at", Timestamp, nullable=False),
        Column("unconfirmed", Boolean, nullable=False),
        Column("lease_token", Uuid),
        Column("lease_until", Timestamp),
        Column("created_at", Timestamp, nullable=False),
        Column("settled_at", Timestamp),
        Column("last_error", Text),
        _one_of("shield_outbox", "status", OUTBOX.states),
        _one_of("shield_outbox", "tx_kind", TxKind),
        _one_of("shield_outbox", "operation", Operation),
        schema=schema,
        # Room on each page for the new version of a claimed row, which then needs no index entry.
        postgresql_with={"fillfactor": "45", **_VACUUM_OFTEN},
    )
    open_ = table.c.settled_at.is_(None)
    in_line = and_(open_, not_(table.c.waiting))
    aside = and_(open_, table.c.waiting)
    # No predicate names a column that a claim changes: claims stay HOT.
    Index(conv("shield_outbox_line_idx"), table.c.seq, table.c.shard, **_where(in_line))
    Index(conv("shield_outbox_waiting_idx"), table.c.shard, table.c.due_at, **_where(aside))
    holding = and_(open_, table.c.waiting, table.c.holds_key)
    Index(conv("shield_outbox_held_key_idx"), table.c.shard, table.c.key, **_where(holding))
    # The few rows that wait for a person, among millions at rest.
    Index(conv("shield_outbox_error_idx"), table.c.settled_at, **_where(ended_in_error(table)))
    Index(
        conv("shield_outbox_biz_key_key"),
        table.c.event_type,
        table.c.biz_key,
        unique=True,
        **_where(_happens_once(table)),
    )
    return table


def _inbox(metadata: MetaData, schema: str | None) -> Table:
    table = Table(
        "shield_inbox",
        metadata,
        Column("event_id", Uuid, primary_key=True),
        Column("consumer_group", Text, primary_key=True),
        *(_with_primary_key(c) if c.name == "source" else c for c in _envelope_columns()),
        Column("seq", _Sequence, Identity(always=True), nullable=False),
        Column("event_time", Timestamp, nullable=False),
        # Of a compensated rollback: the event that was taken back. Unique: it happens once a group.
        Column("compensated_id", Uuid),
        Column("status", String(16), nullable=False),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("due_at", Timestamp, nullable=False),
        Column("lease_token", Uuid),
        Column("lease_until", Timestamp),
        Column("record_partition", Integer),
        Column("record_offset", BigInteger),
        Column("received_at", Timestamp, nullable=False),
        Column("settled_at", Timestamp),
        Column("last_error", Text),
        # Its attempt is one of a batch: whoever takes it over does not count it again.
        Column("together", Boolean, nullable=False, server_default=false()),
        _one_of("shield_inbox", "status", INBOX.states),
        _one_of("shield_inbox", "tx_kind", TxKind),
        _one_of("shield_inbox", "operation", Operation),
        schema=schema,
        postgresql_with={"fillfactor": "70", **_VACUUM_OFTEN},
    )
    c = table.c
    open_ = c.settled_at.is_(None)
    Index(conv("shield_inbox_line_idx"), c.consumer_group, c.seq, **_where(open_))
    Index(conv("shield_inbox_key_idx"), c.consumer_group, c.topic, c.key, c.seq, **_where(open_))
    Index(conv("shield_inbox_error_idx"), c.settled_at, **_where(ended_in_error(table)))
    # Partial: else each version of each row has an entry, a sixth of what receiving and settling
    # one costs the server.
    Index(
        conv("shield_inbox_compensated_id_key"),
        c.consumer_group,
        c.compensated_id,
        unique=True,
        **_where(c.compensated_id.is_not(None)),
    )
    Index(
        conv("shield_inbox_biz_key_key"),
        c.consumer_group,
        c.source,
        c.event_type,
        c.biz_key,
        unique=True,
        **_where(_happens_once(table)),
    )
    return table


def ended_in_error(table: FromClause) -> ColumnElement[bool]:
    """Whether a row is at rest with an error, in the words of the index of such rows.

    Among the states at rest, those that wait for a person all are: FAILED, UNRESOLVED, DEAD.
    """
    return and_(table.c.settled_at.is_not(None), table.c.last_error.is_not(None))


def _happens_once(table: FromClause) -> ColumnElement[bool]:
    """Whether a row has a business key that no other may have.

    Several groups may give the same event up; `compensated_id` makes one compensation of it.
    """
    return and_(table.c.biz_key.is_not(None), table.c.tx_kind == TxKind.COMMIT.value)


def _shard(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "shield_shard",
        metadata,
        Column("shard", SmallInteger, primary_key=True, autoincrement=False),
        Column("owner", Text),
        # Counts the changes of hands.
        Column("epoch", BigInteger, nullable=False, server_default="0"),
        Column("lease_until", Timestamp),
        schema=schema,
    )


def _relay(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "shield_relay",
        metadata,
        Column("relay", Text, primary_key=True),
        Column("alive_until", Timestamp, nullable=False),
        Column("started_at", Timestamp, nullable=False),
        schema=schema,
    )


def _parked(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "shield_parked",
        metadata,
        Column("consumer_group", Text, primary_key=True),
        Column("topic", Text, primary_key=True),
        Column("record_partition", Integer, primary_key=True),
        Column("record_offset", BigInteger, primary_key=True),
        Column("reason", Text, nullable=False),
        Column("record_key", LargeBinary),
        Column("record_value", LargeBinary),
        # A JSON list of [name, value in base64].
        Column("record_headers", Text, nullable=False),
        Column("parked_at", Timestamp, nullable=False),
        schema=schema,
    )


def _audit(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "shield_audit",
        metadata,
        Column("id", _Sequence, Identity(always=True), primary_key=True),
        Column("at", Timestamp, nullable=False),
        Column("who", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("detail", Text, nullable=False),
        schema=schema,
    )


def _with_primary_key(column: Column[Any]) -> Column[Any]:
    return Column(column.name, column.type, primary_key=True)


def _where(predicate: Any) -> dict[str, Any]:
    return {"postgresql_where": predicate, "sqlite_where": predicate}
