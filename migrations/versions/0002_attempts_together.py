"""Inbox rows whose attempt belongs to a batch.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import refuse_rows

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the column; existing rows belong to no batch."""
    op.add_column(
        "shield_inbox",
        sa.Column("together", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema=schema,
    )


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop the batches of attempts, which the older release would count again."""
    inbox = sa.table(
        "shield_inbox",
        sa.column("event_id", sa.Uuid()),
        sa.column("consumer_group"),
        sa.column("together", sa.Boolean()),
        schema=schema,
    )
    refuse_rows(
        connection,
        sa.select(inbox.c.event_id, inbox.c.consumer_group).where(inbox.c.together),
        what="inbox rows whose attempt was one of a batch",
        loss="for which an attempt would be counted twice afterwards",
        remedy="Run the consumers of these groups until the rows are settled, and stop them first",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the column."""
    op.drop_column("shield_inbox", "together", schema=schema)
