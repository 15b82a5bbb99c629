"""DEAD rollback events and parked records can be discarded, a state that the tables now support.

A FAILED event that is discarded becomes DISCARDED, which the outbox has always supported.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import Validation, refuse_rows, replace_check

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

INBOX: Final = "shield_inbox"
CHECK: Final = "shield_inbox_status_check"
DISCARDED: Final = "DISCARDED"
STATES: Final = ("INIT", "PROCESSING", "PROCESSED", "MAX_RECONSUMED", "DEAD", DISCARDED, "FENCED")
REMEDY: Final = "The purge removes them SHIELDTX_RETENTION_INBOX after they were discarded"

ONLINE: Final = (Validation(name=CHECK, table=INBOX),)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Make the inbox accept the state, and add the column."""
    replace_check(op, INBOX, CHECK, _one_of(STATES), schema=schema)
    column = sa.Column("discarded_at", sa.DateTime(timezone=True))
    op.add_column("shield_parked", column, schema=schema)


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse to drop the state of discarded rows."""
    inbox = sa.table(INBOX, sa.column("event_id", sa.Uuid()), sa.column("status"), schema=schema)
    refuse_rows(
        connection,
        sa.select(inbox.c.event_id).where(inbox.c.status == DISCARDED),
        what="rollbacks in the inbox that are DISCARDED",
        remedy=REMEDY,
    )
    names = ("consumer_group", "topic", "record_partition", "record_offset", "discarded_at")
    parked = sa.table("shield_parked", *map(sa.column, names), schema=schema)
    *place, discarded_at = parked.c
    refuse_rows(
        connection,
        sa.select(*place).where(discarded_at.is_not(None)).order_by(*place),
        what="parked records that are discarded",
        loss="which would wait for an operator again",
        remedy=REMEDY,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Remove the state and the column, in one scan of the inbox that blocks its writers."""
    replace_check(
        op, INBOX, CHECK, _one_of(state for state in STATES if state != DISCARDED), schema=schema
    )
    Validation(name=CHECK, table=INBOX).make(op, schema, online=False)
    op.drop_column("shield_parked", "discarded_at", schema=schema)


def _one_of(states: Iterable[str]) -> str:
    listed = ", ".join(f"'{state}'" for state in states)
    return f"status IN ({listed})"
