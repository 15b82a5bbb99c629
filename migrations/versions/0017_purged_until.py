"""The time up to which outbox and inbox have been purged.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Create the table; it stays empty until this or a later release purges rows."""
    op.create_table(
        "shield_purged",
        sa.Column("purged_table", sa.String(16), nullable=False),
        sa.Column("purged_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("purged_table", name=op.f("shield_purged_pkey")),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the table: an earlier release uses only the retention in its reconcile.toml."""
    op.drop_table("shield_purged", schema=schema)
