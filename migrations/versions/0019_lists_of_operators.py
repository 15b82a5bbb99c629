"""Indexes for the lists of operators: events that were given up, and parked records that wait.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

from typing import Final

from alembic.operations import Operations

from shieldtx.store.online import LargeIndex

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

ONLINE: Final = (
    LargeIndex(
        name="shield_inbox_given_up_idx",
        table="shield_inbox",
        columns=("settled_at",),
        where="settled_at IS NOT NULL AND last_error IS NOT NULL AND tx_kind = 'COMMIT'",
    ),
    LargeIndex(
        name="shield_parked_waiting_idx",
        table="shield_parked",
        columns=("parked_at",),
        where="discarded_at IS NULL",
    ),
)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Leave the tables as they are: the indexes are built online."""


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop the indexes: an earlier release has no list of given-up events."""
    op.drop_index("shield_parked_waiting_idx", "shield_parked", schema=schema, if_exists=True)
    op.drop_index("shield_inbox_given_up_idx", "shield_inbox", schema=schema, if_exists=True)
