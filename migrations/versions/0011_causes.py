"""An index of the events that handlers wrote, by their cause: the purge keeps incomplete chains.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

from typing import Final

from alembic.operations import Operations

from shieldtx.store.online import LargeIndex

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NAME: Final = "shield_outbox_cause_idx"

ONLINE: Final = (
    LargeIndex(
        name=NAME,
        table="shield_outbox",
        columns=("causation_id",),
        where="tx_kind = 'COMMIT' AND causation_id IS NOT NULL",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Change nothing except what `ONLINE` creates."""


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the index where it exists."""
    op.drop_index(NAME, "shield_outbox", schema=schema, if_exists=True)
