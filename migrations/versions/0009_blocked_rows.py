"""Blocked rows leave the queue of waiting rows, so that no claim reads them.

They have `holds_key` and are not `waiting`. The index of the queue excludes them, and the index of
the rows with `holds_key` finds the first row of each key.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import LargeIndex

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

ONLINE: Final = (
    LargeIndex(
        name="shield_outbox_ready_idx",
        table="shield_outbox",
        columns=("seq", "shard"),
        where="settled_at IS NULL AND NOT waiting AND NOT holds_key",
        sqlite_where="settled_at IS NULL AND waiting = 0 AND holds_key = 0",
    ),
    LargeIndex(
        name="shield_outbox_holder_idx",
        table="shield_outbox",
        columns=("shard", "key", "seq"),
        where="settled_at IS NULL AND holds_key",
        sqlite_where="settled_at IS NULL AND holds_key = 1",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Change nothing except what `ONLINE` creates."""


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Return blocked rows to the queue."""
    outbox = sa.table(
        "shield_outbox",
        sa.column("settled_at", sa.DateTime(timezone=True)),
        sa.column("waiting", sa.Boolean()),
        sa.column("holds_key", sa.Boolean()),
        schema=schema,
    )
    c = outbox.c
    is_blocked = sa.and_(c.settled_at.is_(None), c.holds_key, sa.not_(c.waiting))
    op.execute(outbox.update().where(is_blocked).values(holds_key=False))
    for index in ONLINE:
        op.drop_index(index.name, "shield_outbox", schema=schema, if_exists=True)
