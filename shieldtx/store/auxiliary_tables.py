"""The other tables: leases, parked records, audit, runs, barriers, trace, purges, pauses."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    false,
)
from sqlalchemy.schema import conv

from shieldtx.store.columns import Sequence, Timestamp, where


def shard(metadata: MetaData, schema: str | None) -> Table:
    """The owner of each shard, and the end of its lease."""
    return Table(
        "shield_shard",
        metadata,
        Column("shard", SmallInteger, primary_key=True, autoincrement=False),
        Column("owner", Text),
        # Counts the changes of the owner.
        Column("epoch", BigInteger, nullable=False, server_default="0"),
        Column("lease_until", Timestamp),
        schema=schema,
    )


def relay(metadata: MetaData, schema: str | None) -> Table:
    """The living relays."""
    return Table(
        "shield_relay",
        metadata,
        Column("relay", Text, primary_key=True),
        Column("alive_until", Timestamp, nullable=False),
        Column("started_at", Timestamp, nullable=False),
        schema=schema,
    )


def parked(metadata: MetaData, schema: str | None) -> Table:
    """Records that could not become inbox rows, with their bytes."""
    table = Table(
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
        # Of the content: a recreated topic uses the same offsets again.
        Column("digest", Text, primary_key=True, server_default=""),
        # By an operator. None: the record waits for an operator.
        Column("discarded_at", Timestamp),
        schema=schema,
    )
    waiting = table.c.discarded_at.is_(None)
    Index(conv("shield_parked_waiting_idx"), table.c.parked_at, **where(waiting))
    return table


def audit(metadata: MetaData, schema: str | None) -> Table:
    """The actions of operators."""
    return Table(
        "shield_audit",
        metadata,
        Column("id", Sequence, Identity(always=True), primary_key=True),
        Column("at", Timestamp, nullable=False),
        Column("who", Text, nullable=False),
        Column("action", Text, nullable=False),
        Column("subject", Text, nullable=False),
        Column("detail", Text, nullable=False),
        schema=schema,
    )


def reconcile_run(metadata: MetaData, schema: str | None) -> Table:
    """The runs of the reconciliation."""
    table = Table(
        "shield_reconcile_run",
        metadata,
        Column("run_id", Text, primary_key=True),
        # The configuration: each has its own watermarks, and one run at a time.
        Column("scope", Text, nullable=False),
        Column("mode", Text, nullable=False),
        Column("who", Text, nullable=False),
        Column("started_at", Timestamp, nullable=False),
        # From then on a running run counts as dead, unless its process extends the lease.
        Column("lease_until", Timestamp, nullable=False),
        Column("finished_at", Timestamp),
        # None while the run is in progress.
        Column("outcome", Text),
        # The next run may begin where this one ended.
        Column("good", Boolean, nullable=False, server_default=false()),
        # JSON: the watermark by service, and the number of events by verdict.
        Column("watermarks", Text, nullable=False, server_default="{}"),
        Column("totals", Text, nullable=False, server_default="{}"),
        Column("folder", Text, nullable=False, server_default=""),
        Column("problem", Text, nullable=False, server_default=""),
        # JSON: the judged rows, the rules and the databases.
        Column("basis", Text, nullable=False, server_default="{}"),
        schema=schema,
    )
    running = table.c.outcome.is_(None)
    Index(conv("shield_reconcile_run_running_key"), table.c.scope, unique=True, **where(running))
    return table


def barrier(metadata: MetaData, schema: str | None) -> Table:
    """What came first for a half message: its local transaction, or a check-back without one."""
    return Table(
        "shield_barrier",
        metadata,
        Column("event_id", Uuid, primary_key=True),
        # True: written by the local transaction. False: by a check-back, so none can commit later.
        Column("committed", Boolean, nullable=False),
        Column("entered_at", Timestamp, nullable=False),
        schema=schema,
    )


def trace(metadata: MetaData, schema: str | None) -> Table:
    """The time and the outcome of each attempt, if the trace is on."""
    table = Table(
        "shield_trace",
        metadata,
        Column("id", Sequence, Identity(always=True), primary_key=True),
        Column("event_id", Uuid, nullable=False),
        # None: an attempt of a relay.
        Column("consumer_group", Text),
        Column("attempt", Integer, nullable=False),
        Column("outcome", String(16), nullable=False),
        # The end of the attempt; the durations before it are in seconds.
        Column("at", Timestamp, nullable=False),
        Column("waited", Float),
        Column("took", Float),
        Column("record_partition", Integer),
        Column("record_offset", BigInteger),
        Column("reason", Text),
        schema=schema,
    )
    Index(conv("shield_trace_event_idx"), table.c.event_id)
    return table


def purged(metadata: MetaData, schema: str | None) -> Table:
    """The time up to which the purge has removed rows: one row per table, outbox and inbox."""
    return Table(
        "shield_purged",
        metadata,
        # `outbox` or `inbox`.
        Column("purged_table", String(16), primary_key=True),
        # Rows that settled before may be gone; the time never moves back.
        Column("purged_until", Timestamp, nullable=False),
        schema=schema,
    )


def pause(metadata: MetaData, schema: str | None) -> Table:
    """The paused handlers of consumer groups."""
    return Table(
        "shield_pause",
        metadata,
        Column("consumer_group", Text, primary_key=True),
        # `*`: all event types of the group, and both kinds.
        Column("event_type", Text, primary_key=True),
        Column("tx_kind", String(8), primary_key=True),
        Column("paused_at", Timestamp, nullable=False),
        # An operator, or `breaker`.
        Column("paused_by", Text, nullable=False),
        Column("reason", Text, nullable=False),
        # None: only an operator ends the pause. Of a claimed probe: the time of the next one, if
        # this one never ends.
        Column("probe_at", Timestamp),
        Column("probes", Integer, nullable=False, server_default="0"),
        # Of the worker that makes the probe.
        Column("probe_token", Uuid),
        schema=schema,
    )
