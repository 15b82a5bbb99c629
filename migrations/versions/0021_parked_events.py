"""Events of the inbox can wait for an operator, in one index with the DEAD rollback events.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import LargeIndex, refuse_rows

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

INBOX: Final = "shield_inbox"
ENDED_IN_ERROR: Final = "settled_at IS NOT NULL AND last_error IS NOT NULL"
OF_OPERATORS: Final = ("DEAD", "DISCARDED")

ONLINE: Final = (
    LargeIndex(
        name="shield_inbox_operator_idx",
        table=INBOX,
        columns=("settled_at",),
        where=f"{ENDED_IN_ERROR} AND (tx_kind = 'ROLLBACK' OR awaits_operator)",
        sqlite_where=f"{ENDED_IN_ERROR} AND (tx_kind = 'ROLLBACK' OR awaits_operator = 1)",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the column, and drop the index of the DEAD rollbacks, which the new index includes."""
    op.add_column(
        INBOX,
        sa.Column("awaits_operator", sa.Boolean(), nullable=False, server_default=sa.false()),
        schema=schema,
    )
    op.drop_index("shield_inbox_dead_idx", INBOX, schema=schema, if_exists=True)


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to leave events that an earlier release would compensate without their effect."""
    columns = (sa.column("event_id", sa.Uuid()), *map(sa.column, ("tx_kind", "status")))
    event_id, kind, status = sa.table(INBOX, *columns, schema=schema).c
    refuse_rows(
        connection,
        sa.select(event_id).where(kind == "COMMIT", status.in_(OF_OPERATORS)),
        what="events in the inbox that are DEAD or DISCARDED",
        loss="which the older release does not list, and takes back as if they had an effect",
        remedy="Replay or refuse the DEAD ones; the purge removes the DISCARDED ones "
        "SHIELDTX_RETENTION_INBOX after they were discarded",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Build the index of the DEAD rollbacks again, in one scan that blocks writers."""
    op.drop_index("shield_inbox_operator_idx", INBOX, schema=schema, if_exists=True)
    op.drop_column(INBOX, "awaits_operator", schema=schema)
    where = sa.text(f"{ENDED_IN_ERROR} AND tx_kind = 'ROLLBACK'")
    op.create_index(
        "shield_inbox_dead_idx",
        INBOX,
        ["settled_at"],
        schema=schema,
        postgresql_where=where,
        sqlite_where=where,
    )
