"""The tables, as SQLAlchemy sees them: `migrations/` makes them, and a test compares both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    FromClause,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    and_,
    false,
    not_,
)
from sqlalchemy.schema import conv

from shieldtx.domain.states import INBOX, OUTBOX, Operation, TxKind
from shieldtx.store import auxiliary_tables
from shieldtx.store.columns import Sequence, Timestamp, envelope_columns, one_of, where

# What is named below is named by `conv`: a host's metadata may have a naming convention of its own.
NAMING = {"pk": "%(table_name)s_pkey"}

# A row is updated at least twice and deleted once, and few rows are open at a time. Vacuum has to
# follow those few: PostgreSQL's default waits for dead rows worth 20 % of the table, settled rows
# in their retention included, and until then claims walk over the dead entries of their index.
_VACUUM_OFTEN = {"autovacuum_vacuum_scale_factor": "0.01"}


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
    reconcile_run: Table
    barrier: Table
    trace: Table
    purged: Table


def tables(schema: str | None = None, metadata: MetaData | None = None) -> Tables:
    """Describe the tables in `schema` (None: the connection's own), in a host's metadata if any.

    Without a host's metadata, all callers of a process share the description of a schema.
    """
    return _own(schema) if metadata is None else _described(metadata, schema)


@cache
def _own(schema: str | None) -> Tables:
    return _described(MetaData(schema=schema, naming_convention=NAMING), schema)


def _described(metadata: MetaData, schema: str | None) -> Tables:
    return Tables(
        metadata=metadata,
        outbox=_outbox(metadata, schema),
        inbox=_inbox(metadata, schema),
        shard=auxiliary_tables.shard(metadata, schema),
        relay=auxiliary_tables.relay(metadata, schema),
        parked=auxiliary_tables.parked(metadata, schema),
        audit=auxiliary_tables.audit(metadata, schema),
        reconcile_run=auxiliary_tables.reconcile_run(metadata, schema),
        barrier=auxiliary_tables.barrier(metadata, schema),
        trace=auxiliary_tables.trace(metadata, schema),
        purged=auxiliary_tables.purged(metadata, schema),
    )


def _outbox(metadata: MetaData, schema: str | None) -> Table:
    table = Table(
        "shield_outbox",
        metadata,
        Column("event_id", Uuid, primary_key=True),
        Column("seq", Sequence, Identity(always=True), nullable=False),
        Column("shard", SmallInteger, nullable=False),
        *envelope_columns(),
        Column("status", String(16), nullable=False),
        Column("attempts", Integer, nullable=False, server_default="0"),
        # A waiting row (a chosen delay, or a retry) is out of the main line of its shard.
        Column("waiting", Boolean, nullable=False),
        # Later rows of its key stay behind it. So a retry does, a delay does not. Where the row is
        # not waiting, it is blocked: out of the line, because an earlier row holds its key.
        Column("holds_key", Boolean, nullable=False),
        Column("due_at", Timestamp, nullable=False),
        Column("unconfirmed", Boolean, nullable=False),
        Column("lease_token", Uuid),
        Column("lease_until", Timestamp),
        Column("created_at", Timestamp, nullable=False),
        Column("settled_at", Timestamp),
        Column("last_error", Text),
        # Of a half message alone: the checks that were counted, when the next is due, and what was
        # chosen for when it is committed. Empty columns take no room in the others.
        Column("checks", Integer),
        Column("check_at", Timestamp),
        Column("send_delay", Float),
        Column("send_at", Timestamp),
        one_of("shield_outbox", "status", OUTBOX.states),
        one_of("shield_outbox", "tx_kind", TxKind),
        one_of("shield_outbox", "operation", Operation),
        schema=schema,
        # Room on each page for the new version of a claimed row, which then needs no index entry.
        postgresql_with={"fillfactor": "45", **_VACUUM_OFTEN},
    )
    open_ = table.c.settled_at.is_(None)
    aside = and_(open_, table.c.waiting)
    # No predicate names a column that a claim changes: claims stay HOT.
    Index(conv("shield_outbox_ready_idx"), table.c.seq, table.c.shard, **where(in_line(table)))
    Index(conv("shield_outbox_waiting_idx"), table.c.shard, table.c.due_at, **where(aside))
    # In the words of one column: the planner would take `waiting` and `holds_key` for unrelated.
    holding = and_(open_, table.c.holds_key)
    c = table.c
    Index(conv("shield_outbox_holder_idx"), c.shard, c.key, c.seq, **where(holding))
    checked = table.c.check_at.is_not(None)
    Index(conv("shield_outbox_check_idx"), table.c.event_type, table.c.check_at, **where(checked))
    # The few rows that wait for an operator, among millions of settled ones.
    Index(conv("shield_outbox_error_idx"), table.c.settled_at, **where(needs_operator(table)))
    _index_settled(table)
    Index(
        conv("shield_outbox_biz_key_key"),
        table.c.event_type,
        table.c.biz_key,
        unique=True,
        **where(_happens_once(table)),
    )
    _index_rollbacks(table)
    _index_causes(table)
    return table


def _inbox(metadata: MetaData, schema: str | None) -> Table:
    table = Table(
        "shield_inbox",
        metadata,
        Column("event_id", Uuid, primary_key=True),
        Column("consumer_group", Text, primary_key=True),
        *(_with_primary_key(c) if c.name == "source" else c for c in envelope_columns()),
        Column("seq", Sequence, Identity(always=True), nullable=False),
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
        # Its attempt is one of a batch: the worker that takes it over does not count it again.
        Column("together", Boolean, nullable=False, server_default=false()),
        one_of("shield_inbox", "status", INBOX.states),
        one_of("shield_inbox", "tx_kind", TxKind),
        one_of("shield_inbox", "operation", Operation),
        schema=schema,
        postgresql_with={"fillfactor": "70", **_VACUUM_OFTEN},
    )
    c = table.c
    open_ = c.settled_at.is_(None)
    Index(conv("shield_inbox_line_idx"), c.consumer_group, c.seq, **where(open_))
    Index(conv("shield_inbox_key_idx"), c.consumer_group, c.topic, c.key, c.seq, **where(open_))
    # DEAD rollbacks: few, while refused events (MAX_RECONSUMED) can be millions.
    Index(conv("shield_inbox_dead_idx"), c.settled_at, **where(needs_operator(table)))
    _index_settled(table)
    # Partial: else each version of each row has an entry, a sixth of what receiving and settling
    # one costs the server.
    Index(
        conv("shield_inbox_compensated_id_key"),
        c.consumer_group,
        c.compensated_id,
        unique=True,
        **where(c.compensated_id.is_not(None)),
    )
    Index(
        conv("shield_inbox_biz_key_key"),
        c.consumer_group,
        c.source,
        c.event_type,
        c.biz_key,
        unique=True,
        **where(_happens_once(table)),
    )
    _index_rollbacks(table)
    return table


def in_line(outbox: FromClause) -> ColumnElement[bool]:
    """Test whether a row is in the line: for its index, and for the statements that walk there."""
    return and_(outbox.c.settled_at.is_(None), not_(outbox.c.waiting), not_(outbox.c.holds_key))


def needs_operator(table: Table) -> ColumnElement[bool]:
    """Whether a row can be one that waits for an operator, in the predicate of the index of those.

    All FAILED, UNRESOLVED and DEAD rows are among them, and few others. The predicate names no
    status: a claim would not be HOT.
    """
    at_rest_with_an_error = and_(table.c.settled_at.is_not(None), table.c.last_error.is_not(None))
    if table.name == "shield_outbox":
        return at_rest_with_an_error
    return and_(at_rest_with_an_error, table.c.tx_kind == TxKind.ROLLBACK.value)


def _index_rollbacks(table: Table) -> None:
    """Find the few rollbacks by what they take back; nothing that is named here ever changes."""
    c = table.c
    is_rollback = c.tx_kind == TxKind.ROLLBACK.value
    Index(conv(f"{table.name}_rollback_idx"), c.causation_id, **where(is_rollback))


def _index_causes(table: Table) -> None:
    """Find the events that a handler wrote by the event that it handled."""
    c = table.c
    was_caused = and_(c.tx_kind == TxKind.COMMIT.value, c.causation_id.is_not(None))
    Index(conv(f"{table.name}_cause_idx"), c.causation_id, **where(was_caused))


def _index_settled(table: Table) -> None:
    """Find the pages with rows that have settled since.

    Where PostgreSQL keeps updates HOT in spite of it: there is none before PostgreSQL 16.
    """
    Index(conv(f"{table.name}_settled_idx"), table.c.settled_at, postgresql_using="brin")


def _happens_once(table: FromClause) -> ColumnElement[bool]:
    """Whether a row has a business key that no other may have.

    Several groups may give the same event up; `compensated_id` makes one compensation of it.
    """
    return and_(table.c.biz_key.is_not(None), table.c.tx_kind == TxKind.COMMIT.value)


def _with_primary_key(column: Column[Any]) -> Column[Any]:
    return Column(column.name, column.type, primary_key=True)
