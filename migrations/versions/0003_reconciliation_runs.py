"""The runs of the reconciliation, and where the few rollbacks are among all events.

The indexes are built in one scan of each table, during which nobody writes to it.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
ROLLBACKS = sa.text("tx_kind = 'ROLLBACK'")
RUNNING = sa.text("outcome IS NULL")


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Make the table of the runs, and the indexes."""
    op.create_table(
        "shield_reconcile_run",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("started_at", TIMESTAMP, nullable=False),
        sa.Column("lease_until", TIMESTAMP, nullable=False),
        sa.Column("finished_at", TIMESTAMP),
        sa.Column("outcome", sa.Text()),
        sa.Column("good", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("watermarks", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("totals", sa.Text(), nullable=False, server_default="{}"),
        sa.Column("folder", sa.Text(), nullable=False, server_default=""),
        sa.Column("problem", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("run_id", name=op.f("shield_reconcile_run_pkey")),
        schema=schema,
    )
    op.create_index(
        "shield_reconcile_run_running_key",
        "shield_reconcile_run",
        ["scope"],
        unique=True,
        schema=schema,
        postgresql_where=RUNNING,
        sqlite_where=RUNNING,
    )
    for table in ("outbox", "inbox"):
        op.create_index(
            f"shield_{table}_rollback_idx",
            f"shield_{table}",
            ["causation_id"],
            schema=schema,
            postgresql_where=ROLLBACKS,
            sqlite_where=ROLLBACKS,
        )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop them, and with them up to when all was in order: the next run looks at everything."""
    for table in ("outbox", "inbox"):
        op.drop_index(f"shield_{table}_rollback_idx", f"shield_{table}", schema=schema)
    op.drop_table("shield_reconcile_run", schema=schema)
