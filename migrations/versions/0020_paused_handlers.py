"""The paused handlers of consumer groups.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Create the table: no handler is paused."""
    op.create_table(
        "shield_pause",
        sa.Column("consumer_group", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("tx_kind", sa.String(8), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("probe_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("probes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("probe_token", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint(
            "consumer_group", "event_type", "tx_kind", name=op.f("shield_pause_pkey")
        ),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the table: an earlier release attempts the events of paused handlers again."""
    op.drop_table("shield_pause", schema=schema)
