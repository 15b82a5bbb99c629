"""Drops the indexes for claims that read blocked rows; revision 0009 created their replacements.

Relays of the previous release have no index for their claims from here on: replace them soon after.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the indexes."""
    for name in ("line", "held_key"):
        op.drop_index(f"shield_outbox_{name}_idx", "shield_outbox", schema=schema)


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Build the indexes again, in scans of the outbox that block its writers."""
    op.create_index(
        "shield_outbox_line_idx",
        "shield_outbox",
        ["seq", "shard"],
        schema=schema,
        postgresql_where=sa.text("settled_at IS NULL AND NOT waiting"),
        sqlite_where=sa.text("settled_at IS NULL AND waiting = 0"),
    )
    op.create_index(
        "shield_outbox_held_key_idx",
        "shield_outbox",
        ["shard", "key"],
        schema=schema,
        postgresql_where=sa.text("settled_at IS NULL AND waiting AND holds_key"),
        sqlite_where=sa.text("settled_at IS NULL AND waiting = 1 AND holds_key = 1"),
    )
