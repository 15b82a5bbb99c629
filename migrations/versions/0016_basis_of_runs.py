"""Runs of the reconciliation store their basis: the next run continues only from an equal basis.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the column; after runs of a former release, the next run judges all events."""
    column = sa.Column("basis", sa.Text(), nullable=False, server_default="{}")
    op.add_column("shield_reconcile_run", column, schema=schema)


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Remove the column, and so the watermarks of good runs: a former release judges all events."""
    run = sa.table("shield_reconcile_run", sa.column("good", sa.Boolean()), schema=schema)
    op.execute(run.update().values(good=sa.false()))
    op.drop_column("shield_reconcile_run", "basis", schema=schema)
