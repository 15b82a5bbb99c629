"""An index of what has settled since: a nightly reconciliation need not read all that is at rest.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

from typing import Final

from alembic.operations import Operations

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLES: Final = ("shield_outbox", "shield_inbox")
POSTGRESQL_16: Final = (16,)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Make the index, one of pages (BRIN): it is small, and hardly costs the rows anything.

    Before PostgreSQL 16 it would cost them much: no update of an indexed column could be HOT.
    https://www.postgresql.org/docs/16/release-16.html
    """
    dialect = op.get_context().dialect
    if dialect.name == "postgresql" and (dialect.server_version_info or ()) < POSTGRESQL_16:
        return
    for table in TABLES:
        op.create_index(
            f"{table}_settled_idx", table, ["settled_at"], schema=schema, postgresql_using="brin"
        )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Drop it where it was made."""
    for table in TABLES:
        op.drop_index(f"{table}_settled_idx", table, schema=schema, if_exists=True)
