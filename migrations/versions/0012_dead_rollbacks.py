"""An index of only the DEAD rollback events, in place of an index that refused events fill.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import LargeIndex

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ENDED_IN_ERROR: Final = "settled_at IS NOT NULL AND last_error IS NOT NULL"

ONLINE: Final = (
    LargeIndex(
        name="shield_inbox_dead_idx",
        table="shield_inbox",
        columns=("settled_at",),
        where=f"{ENDED_IN_ERROR} AND tx_kind = 'ROLLBACK'",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the index of all rows that ended in an error."""
    op.drop_index("shield_inbox_error_idx", "shield_inbox", schema=schema, if_exists=True)


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Build that index again, in one scan of the inbox that blocks its writers."""
    op.drop_index("shield_inbox_dead_idx", "shield_inbox", schema=schema, if_exists=True)
    op.create_index(
        "shield_inbox_error_idx",
        "shield_inbox",
        ["settled_at"],
        schema=schema,
        postgresql_where=sa.text(ENDED_IN_ERROR),
        sqlite_where=sa.text(ENDED_IN_ERROR),
    )
