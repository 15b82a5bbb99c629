"""The schema of an event's payload.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import refuse_rows

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLES = ("shield_outbox", "shield_inbox")
REPLAYED = ("FAILED", "UNRESOLVED", "DEAD")
"""States that an operator ends with a replay or a decision."""


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the column; events that were written before have no version, which counts as 1."""
    for table in TABLES:
        op.add_column(table, sa.Column("dataschema", sa.Text()), schema=schema)


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop the versions of events that are still to be handled, or can be replayed."""
    names = ("dataschema", "settled_at", "status")
    for name in TABLES:
        columns = sa.column("event_id", sa.Uuid()), *map(sa.column, names)
        event_id, dataschema, settled_at, status = sa.table(name, *columns, schema=schema).c
        refuse_rows(
            connection,
            sa.select(event_id).where(
                dataschema.is_not(None), sa.or_(settled_at.is_(None), status.in_(REPLAYED))
            ),
            what=f"rows of {name} with a schema version that are open or can be replayed",
            loss="which would be handled as version 1 afterwards",
            remedy="Stop the writers, run the relays and consumers, and replay or discard the rest",
        )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the column."""
    for table in TABLES:
        op.drop_column(table, "dataschema", schema=schema)
