"""Half messages whose check-backs a downgrade dropped are checked again, from the first one on.

A downgrade below revision 0004 dropped the columns of the checks, and an upgrade added them empty.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Schedule a check-back of each at once, without blocking writers of the table."""
    outbox = sa.table(
        "shield_outbox",
        *map(sa.column, ("status", "settled_at", "waiting", "check_at", "created_at")),
        sa.column("checks", sa.Integer()),
        schema=schema,
    )
    is_forgotten = sa.and_(
        outbox.c.settled_at.is_(None),
        outbox.c.waiting,
        outbox.c.status == "HALF",
        outbox.c.check_at.is_(None),
    )
    # A time in the past: the check-back is due.
    planned = {"checks": 0, "check_at": outbox.c.created_at}
    op.execute(outbox.update().where(is_forgotten).values(planned))


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Leave the rows unchanged."""
