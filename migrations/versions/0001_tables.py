"""The tables of the first release, and the shards.

Revision ID: 0001
Revises: nothing
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.statements.locks import qualified

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIMESTAMP = sa.DateTime(timezone=True)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Create the tables, and insert the row of each shard."""
    _make_outbox(op, schema)
    _make_inbox(op, schema)
    _make_shards(op, schema, shards)
    op.create_table(
        "shield_relay",
        sa.Column("relay", sa.Text(), nullable=False),
        sa.Column("alive_until", TIMESTAMP, nullable=False),
        sa.Column("started_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("relay", name=op.f("shield_relay_pkey")),
        schema=schema,
    )
    op.create_table(
        "shield_parked",
        sa.Column("consumer_group", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("record_partition", sa.Integer(), nullable=False),
        sa.Column("record_offset", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("record_key", sa.LargeBinary()),
        sa.Column("record_value", sa.LargeBinary()),
        sa.Column("record_headers", sa.Text(), nullable=False),
        sa.Column("parked_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint(
            "consumer_group",
            "topic",
            "record_partition",
            "record_offset",
            name=op.f("shield_parked_pkey"),
        ),
        schema=schema,
    )
    op.create_table(
        "shield_audit",
        sa.Column("id", SEQUENCE, sa.Identity(always=True), nullable=False),
        sa.Column("at", TIMESTAMP, nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("shield_audit_pkey")),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the tables with all their rows, unsent events too."""
    for table in ("audit", "parked", "relay", "shard", "inbox", "outbox"):
        op.drop_table(f"shield_{table}", schema=schema)


def _make_outbox(op: Operations, schema: str | None) -> None:
    op.create_table(
        "shield_outbox",
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("seq", SEQUENCE, sa.Identity(always=True), nullable=False),
        sa.Column("shard", sa.SmallInteger(), nullable=False),
        *_envelope_columns(),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("waiting", sa.Boolean(), nullable=False),
        sa.Column("holds_key", sa.Boolean(), nullable=False),
        sa.Column("due_at", TIMESTAMP, nullable=False),
        sa.Column("unconfirmed", sa.Boolean(), nullable=False),
        sa.Column("lease_token", sa.Uuid()),
        sa.Column("lease_until", TIMESTAMP),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("settled_at", TIMESTAMP),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint("event_id", name=op.f("shield_outbox_pkey")),
        sa.CheckConstraint(
            "status IN ('INIT', 'HALF', 'DISCARDED', 'UNRESOLVED', 'PROCESSING', 'PROCESSED', "
            "'FAILED')",
            name=op.f("shield_outbox_status_check"),
        ),
        *_envelope_checks(op, "shield_outbox"),
        schema=schema,
    )
    _set_storage(op, "shield_outbox", schema, fillfactor=45)

    def index(
        name: str, columns: list[str], where: dict[str, Any], *, unique: bool = False
    ) -> None:
        op.create_index(name, "shield_outbox", columns, unique=unique, schema=schema, **where)

    index(
        "shield_outbox_line_idx",
        ["seq", "shard"],
        _where("settled_at IS NULL AND NOT waiting", "settled_at IS NULL AND waiting = 0"),
    )
    index(
        "shield_outbox_waiting_idx",
        ["shard", "due_at"],
        _where("settled_at IS NULL AND waiting", "settled_at IS NULL AND waiting = 1"),
    )
    index(
        "shield_outbox_held_key_idx",
        ["shard", "key"],
        _where(
            "settled_at IS NULL AND waiting AND holds_key",
            "settled_at IS NULL AND waiting = 1 AND holds_key = 1",
        ),
    )
    index(
        "shield_outbox_error_idx",
        ["settled_at"],
        _where("settled_at IS NOT NULL AND last_error IS NOT NULL"),
    )
    index(
        "shield_outbox_biz_key_key",
        ["event_type", "biz_key"],
        _where("biz_key IS NOT NULL AND tx_kind = 'COMMIT'"),
        unique=True,
    )


def _make_inbox(op: Operations, schema: str | None) -> None:
    op.create_table(
        "shield_inbox",
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("consumer_group", sa.Text(), nullable=False),
        *_envelope_columns(),
        sa.Column("seq", SEQUENCE, sa.Identity(always=True), nullable=False),
        sa.Column("event_time", TIMESTAMP, nullable=False),
        sa.Column("compensated_id", sa.Uuid()),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("due_at", TIMESTAMP, nullable=False),
        sa.Column("lease_token", sa.Uuid()),
        sa.Column("lease_until", TIMESTAMP),
        sa.Column("record_partition", sa.Integer()),
        sa.Column("record_offset", sa.BigInteger()),
        sa.Column("received_at", TIMESTAMP, nullable=False),
        sa.Column("settled_at", TIMESTAMP),
        sa.Column("last_error", sa.Text()),
        sa.PrimaryKeyConstraint(
            "event_id", "consumer_group", "source", name=op.f("shield_inbox_pkey")
        ),
        sa.CheckConstraint(
            "status IN ('INIT', 'PROCESSING', 'PROCESSED', 'MAX_RECONSUMED', 'DEAD', 'FENCED')",
            name=op.f("shield_inbox_status_check"),
        ),
        *_envelope_checks(op, "shield_inbox"),
        schema=schema,
    )
    _set_storage(op, "shield_inbox", schema, fillfactor=70)

    def index(name: str, columns: list[str], where: str, *, unique: bool = False) -> None:
        op.create_index(
            name, "shield_inbox", columns, unique=unique, schema=schema, **_where(where)
        )

    index("shield_inbox_line_idx", ["consumer_group", "seq"], "settled_at IS NULL")
    index(
        "shield_inbox_key_idx",
        ["consumer_group", "topic", "key", "seq"],
        "settled_at IS NULL",
    )
    index(
        "shield_inbox_error_idx",
        ["settled_at"],
        "settled_at IS NOT NULL AND last_error IS NOT NULL",
    )
    index(
        "shield_inbox_compensated_id_key",
        ["consumer_group", "compensated_id"],
        "compensated_id IS NOT NULL",
        unique=True,
    )
    index(
        "shield_inbox_biz_key_key",
        ["consumer_group", "source", "event_type", "biz_key"],
        "biz_key IS NOT NULL AND tx_kind = 'COMMIT'",
        unique=True,
    )


def _make_shards(op: Operations, schema: str | None, shards: int) -> None:
    table = op.create_table(
        "shield_shard",
        sa.Column("shard", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("epoch", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("lease_until", TIMESTAMP),
        sa.PrimaryKeyConstraint("shard", name=op.f("shield_shard_pkey")),
        schema=schema,
    )
    op.bulk_insert(table, [{"shard": number} for number in range(shards)])


def _set_storage(op: Operations, table: str, schema: str | None, *, fillfactor: int) -> None:
    """Leave space for new versions of rows; SQLAlchemy 2.0 has no parameters in CREATE TABLE."""
    if op.get_context().dialect.name == "postgresql":
        parameters = f"fillfactor = {fillfactor}, autovacuum_vacuum_scale_factor = 0.01"
        op.execute(f"ALTER TABLE {qualified(table, schema)} SET ({parameters})")


def _envelope_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("tx_kind", sa.String(8), nullable=False),
        sa.Column("operation", sa.String(6), nullable=False),
        sa.Column("key", sa.Text()),
        sa.Column("biz_key", sa.Text()),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("headers", sa.Text()),
        sa.Column("traceparent", sa.Text()),
        sa.Column("causation_id", sa.Uuid()),
        sa.Column("causation_source", sa.Text()),
    ]


def _envelope_checks(op: Operations, table: str) -> list[sa.CheckConstraint]:
    return [
        sa.CheckConstraint(
            "tx_kind IN ('COMMIT', 'ROLLBACK')", name=op.f(f"{table}_tx_kind_check")
        ),
        sa.CheckConstraint(
            "operation IN ('INSERT', 'UPDATE', 'DELETE')", name=op.f(f"{table}_operation_check")
        ),
    ]


def _where(postgresql: str, sqlite: str | None = None) -> dict[str, Any]:
    """Return the predicate of a partial index; the databases write booleans differently."""
    return {
        "postgresql_where": sa.text(postgresql),
        "sqlite_where": sa.text(sqlite or postgresql),
    }
