"""The runs of the reconciliation, and indexes of the few rollback events.

The indexes are built concurrently with the writers of both tables.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import LargeIndex, refuse_rows

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TIMESTAMP = sa.DateTime(timezone=True)
RUNNING = sa.text("outcome IS NULL")

ONLINE = tuple(
    LargeIndex(
        name=f"{table}_rollback_idx",
        table=table,
        columns=("causation_id",),
        where="tx_kind = 'ROLLBACK'",
    )
    for table in ("shield_outbox", "shield_inbox")
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Create the table of the runs."""
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


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop stored runs."""
    run = sa.table("shield_reconcile_run", sa.column("run_id"), schema=schema)
    refuse_rows(
        connection,
        sa.select(run.c.run_id).order_by(run.c.run_id),
        what="stored runs of the reconciliation",
        loss="which would be lost",
        remedy="`shieldtx reconcile runs` lists them: keep a copy, and delete the rows of "
        "shield_reconcile_run first",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the runs with their watermarks: the next run judges all events."""
    for table in ("outbox", "inbox"):
        op.drop_index(
            f"shield_{table}_rollback_idx", f"shield_{table}", schema=schema, if_exists=True
        )
    op.drop_table("shield_reconcile_run", schema=schema)
