"""Inbox rows whose attempt is one of a batch.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the column; rows of before are in no batch."""
    op.add_column(
        "shield_inbox",
        sa.Column("together", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the column."""
    op.drop_column("shield_inbox", "together", schema=schema)
