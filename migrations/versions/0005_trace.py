"""The trace of single attempts, which is recorded where `SHIELDTX_TRACE` is set.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import refuse_rows

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Create the table of the trace."""
    op.create_table(
        "shield_trace",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.Identity(always=True),
            nullable=False,
        ),
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("consumer_group", sa.Text()),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("at", TIMESTAMP, nullable=False),
        sa.Column("waited", sa.Float()),
        sa.Column("took", sa.Float()),
        sa.Column("record_partition", sa.Integer()),
        sa.Column("record_offset", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("shield_trace_pkey")),
        schema=schema,
    )
    op.create_index("shield_trace_event_idx", "shield_trace", ["event_id"], schema=schema)


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop stored attempts."""
    trace = sa.table("shield_trace", sa.column("event_id", sa.Uuid()), schema=schema)
    refuse_rows(
        connection,
        sa.select(trace.c.event_id),
        what="stored attempts of the trace",
        loss="which would be lost",
        remedy="Set SHIELDTX_TRACE=false in all processes, and delete the rows of shield_trace",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the table with all its rows."""
    op.drop_table("shield_trace", schema=schema)
