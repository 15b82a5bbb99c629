"""What is known of half messages until their end, and the barrier of their local transactions.

The columns are empty for all other rows and take no room there. The index is built in one scan of
the outbox, during which nobody writes to it.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
CHECKED = sa.text("check_at IS NOT NULL")


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the columns and their index, and make the barrier."""
    for column in (
        sa.Column("checks", sa.Integer()),
        sa.Column("check_at", TIMESTAMP),
        sa.Column("send_delay", sa.Float()),
        sa.Column("send_at", TIMESTAMP),
    ):
        op.add_column("shield_outbox", column, schema=schema)
    op.create_index(
        "shield_outbox_check_idx",
        "shield_outbox",
        ["event_type", "check_at"],
        schema=schema,
        postgresql_where=CHECKED,
        sqlite_where=CHECKED,
    )
    op.create_table(
        "shield_barrier",
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.Column("entered_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("shield_barrier_pkey")),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop them: half messages that are still open are never checked again."""
    op.drop_table("shield_barrier", schema=schema)
    op.drop_index("shield_outbox_check_idx", "shield_outbox", schema=schema)
    for column in ("send_at", "send_delay", "check_at", "checks"):
        op.drop_column("shield_outbox", column, schema=schema)
