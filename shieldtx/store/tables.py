"""The tables for SQLAlchemy: `migrations/` creates them, and a test compares both."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
    or_,
)
from sqlalchemy.schema import conv

from shieldtx.domain.states import INBOX, OUTBOX, Operation, TxKind
from shieldtx.store import auxiliary_tables
from shieldtx.store.columns import (
    Sequence,
    Timestamp,
    envelope_columns,
    one_of,
    set_storage,
    where,
)

# Names below use `conv`, because a host's metadata may have its own naming convention.
NAMING = {"pk": "%(table_name)s_pkey"}

OWNER = "shieldtx"
"""The key that these tables have in `Table.info`, by which a host's autogenerate ignores them."""

# A row is updated at least twice and deleted once, and few rows are open at a time. Vacuum has to
# run often: PostgreSQL's default waits until dead rows are 20 % of the table, settled rows in their
# retention included. Until then, claims read the dead entries of their index.
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
    pause: Table


def tables(schema: str | None = None, metadata: MetaData | None = None) -> Tables:
    """Return the tables in `schema` (None: the connection's default), in a host's metadata if any.

    Without a host's metadata, all callers of a process share the tables of a schema.
    """
    return _own(schema) if metadata is None else _described(metadata, schema)


@cache
def _own(schema: str | None) -> Tables:
    return _described(MetaData(schema=schema, naming_convention=NAMING), schema)


def _described(metadata: MetaData, schema: str | None) -> Tables:
    found = Tables(
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
        pause=auxiliary_tables.pause(metadata, schema),
    )
    for field in fields(found):
        if isinstance(table := getattr(found, field.name), Table):
            table.info[OWNER] = True
    return found


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
        # A waiting row (a chosen delay, or a retry) is not in the main queue of its shard.
        Column("waiting", Boolean, nullable=False),
        # Later rows of the key wait for this row. A retry holds its key, a delay does not. A row
        # that is not waiting is blocked: not in the main queue, as an earlier row holds its key.
        Column("holds_key", Boolean, nullable=False),
        Column("due_at", Timestamp, nullable=False),
        Column("unconfirmed", Boolean, nullable=False),
        Column("lease_token", Uuid),
        Column("lease_until", Timestamp),
        Column("created_at", Timestamp, nullable=False),
        Column("settled_at", Timestamp),
        Column("last_error", Text),
        # Only for half messages: the number of checks, the time of the next check, and the chosen
        # delay or time after the commit. NULL columns take no space in other rows.
        Column("checks", Integer),
        Column("check_at", Timestamp),
        Column("send_delay", Float),
        Column("send_at", Timestamp),
        Column("dataschema", Text),
        one_of("shield_outbox", "status", OUTBOX.states),
        one_of("shield_outbox", "tx_kind", TxKind),
        one_of("shield_outbox", "operation", Operation),
        schema=schema,
    )
    # Space on each page for the new version of a claimed row, which then needs no index entry.
    set_storage(table, fillfactor="45", **_VACUUM_OFTEN)
    open_ = table.c.settled_at.is_(None)
    aside = and_(open_, table.c.waiting)
    # No predicate names a column that a claim changes: claims stay HOT.
    Index(
        conv("shield_outbox_ready_idx"), table.c.seq, table.c.shard, **where(in_main_queue(table))
    )
    Index(conv("shield_outbox_waiting_idx"), table.c.shard, table.c.due_at, **where(aside))
    # A condition on one column: the planner would assume `waiting` and `holds_key` independent.
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
        # The event that a compensated rollback took back. Unique: once in a group.
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
        # The attempt is part of a batch: a worker that takes the row over does not count it again.
        Column("together", Boolean, nullable=False, server_default=false()),
        Column("dataschema", Text),
        # The row is DEAD: in an index predicate, the status itself would make each claim not HOT.
        Column("awaits_operator", Boolean, nullable=False, server_default=false()),
        one_of("shield_inbox", "status", INBOX.states),
        one_of("shield_inbox", "tx_kind", TxKind),
        one_of("shield_inbox", "operation", Operation),
        schema=schema,
    )
    set_storage(table, fillfactor="70", **_VACUUM_OFTEN)
    c = table.c
    open_ = c.settled_at.is_(None)
    Index(conv("shield_inbox_line_idx"), c.consumer_group, c.seq, **where(open_))
    Index(conv("shield_inbox_key_idx"), c.consumer_group, c.topic, c.key, c.seq, **where(open_))
    # DEAD rows: few, while refused events (MAX_RECONSUMED) can be millions.
    Index(conv("shield_inbox_operator_idx"), c.settled_at, **where(needs_operator(table)))
    # Refused events: for their list. A row that is not given up has no entry.
    Index(conv("shield_inbox_given_up_idx"), c.settled_at, **where(was_given_up(table)))
    _index_settled(table)
    # Partial: otherwise each version of each row has an entry, a sixth of the server's cost to
    # receive and settle a row.
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


def in_main_queue(outbox: FromClause) -> ColumnElement[bool]:
    """Test whether a row is in the main queue: for its index and the statements that use it."""
    return and_(outbox.c.settled_at.is_(None), not_(outbox.c.waiting), not_(outbox.c.holds_key))


def needs_operator(table: Table) -> ColumnElement[bool]:
    """Whether a row may wait for an operator: the predicate of the index of such rows.

    The predicate includes all FAILED, UNRESOLVED and DEAD rows, and few others. It names no status,
    because then a claim would not be HOT.
    """
    if table.name == "shield_outbox":
        return _is_settled_with_error(table)
    is_dead = or_(table.c.tx_kind == TxKind.ROLLBACK.value, table.c.awaits_operator)
    return and_(_is_settled_with_error(table), is_dead)


def was_given_up(inbox: Table) -> ColumnElement[bool]:
    """Whether an inbox row may be MAX_RECONSUMED: the predicate of the index of such rows."""
    return and_(_is_settled_with_error(inbox), inbox.c.tx_kind == TxKind.COMMIT.value)


def _is_settled_with_error(table: Table) -> ColumnElement[bool]:
    return and_(table.c.settled_at.is_not(None), table.c.last_error.is_not(None))


def _index_rollbacks(table: Table) -> None:
    """Index the few rollbacks by the event that they take back; these columns never change."""
    c = table.c
    is_rollback = c.tx_kind == TxKind.ROLLBACK.value
    Index(conv(f"{table.name}_rollback_idx"), c.causation_id, **where(is_rollback))


def _index_causes(table: Table) -> None:
    """Index the events that handlers wrote by the event that was handled."""
    c = table.c
    was_caused = and_(c.tx_kind == TxKind.COMMIT.value, c.causation_id.is_not(None))
    Index(conv(f"{table.name}_cause_idx"), c.causation_id, **where(was_caused))


def _index_settled(table: Table) -> None:
    """Index the pages of settled rows by time.

    The index exists from PostgreSQL 16 on, where updates stay HOT in spite of a BRIN index.
    """
    Index(conv(f"{table.name}_settled_idx"), table.c.settled_at, postgresql_using="brin")


def _happens_once(table: FromClause) -> ColumnElement[bool]:
    """Whether a row has a business key that must be unique.

    Rollbacks may share a key: several groups may give up the same event. `compensated_id` limits
    them to one compensation.
    """
    return and_(table.c.biz_key.is_not(None), table.c.tx_kind == TxKind.COMMIT.value)


def _with_primary_key(column: Column[Any]) -> Column[Any]:
    return Column(column.name, column.type, primary_key=True)
