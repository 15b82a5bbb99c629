"""An index of settled rows by time: a nightly reconciliation need not read all settled rows.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from typing import Final

from alembic.operations import Operations

from shieldtx.store.online import LargeIndex

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES: Final = ("shield_outbox", "shield_inbox")

# A block range index (BRIN) is small, and hardly slows writers. Before PostgreSQL 16 it would slow
# them, as no update of an indexed column could be HOT.
# https://www.postgresql.org/docs/16/release-16.html
ONLINE: Final = tuple(
    LargeIndex(
        name=f"{table}_settled_idx", table=table, columns=("settled_at",), using="brin", since=16
    )
    for table in TABLES
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Change nothing except what `ONLINE` creates."""


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the index where it exists."""
    for table in TABLES:
        op.drop_index(f"{table}_settled_idx", table, schema=schema, if_exists=True)
