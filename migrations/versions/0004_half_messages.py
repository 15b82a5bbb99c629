"""The columns of half messages until their outcome, and the barrier of their local transactions.

The columns are empty for all other rows and take no room there. The index is built concurrently
with the writers of the outbox.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import LargeIndex, refuse_rows

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)

ONLINE = (
    LargeIndex(
        name="shield_outbox_check_idx",
        table="shield_outbox",
        columns=("event_type", "check_at"),
        where="check_at IS NOT NULL",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the columns, and create the barrier."""
    for column in (
        sa.Column("checks", sa.Integer()),
        sa.Column("check_at", TIMESTAMP),
        sa.Column("send_delay", sa.Float()),
        sa.Column("send_at", TIMESTAMP),
    ):
        op.add_column("shield_outbox", column, schema=schema)
    op.create_table(
        "shield_barrier",
        sa.Column("event_id", sa.Uuid(), nullable=False),
        sa.Column("committed", sa.Boolean(), nullable=False),
        sa.Column("entered_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("shield_barrier_pkey")),
        schema=schema,
    )


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop the check-back columns of half messages that are not settled."""
    outbox = sa.table(
        "shield_outbox", sa.column("event_id", sa.Uuid()), sa.column("status"), schema=schema
    )
    refuse_rows(
        connection,
        sa.select(outbox.c.event_id).where(outbox.c.status.in_(["HALF", "UNRESOLVED"])),
        what="half messages that are HALF or UNRESOLVED",
        remedy="`shieldtx half list` lists them: commit or roll back each of them first",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the columns and the barrier."""
    op.drop_table("shield_barrier", schema=schema)
    op.drop_index("shield_outbox_check_idx", "shield_outbox", schema=schema, if_exists=True)
    for column in ("send_at", "send_delay", "check_at", "checks"):
        op.drop_column("shield_outbox", column, schema=schema)
