"""Events that a writer put outside of the tables' shards come into the shards of their keys.

A writer with another number of shards than the tables wrote them; no relay has ever seen them. They
are published after this, in the order in which they were written. Events of their keys that were
written later, by other writers, may have been published before.

Rows that a writer with fewer shards put into a shard that exists, but is not that of their key,
stay: only reading the whole backlog would find them. A relay of that shard publishes them.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import zlib
from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TOGETHER: Final = 5_000
"""Rows of one statement."""


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Move the rows, and let the constraint hold for all; neither keeps writers from the table."""
    outbox = sa.table(
        "shield_outbox",
        sa.column("event_id", sa.Uuid()),
        sa.column("key", sa.Text()),
        sa.column("shard", sa.SmallInteger()),
        schema=schema,
    )
    connection = op.get_bind()
    shard = sa.table(
        "shield_shard",
        sa.column("shard", sa.SmallInteger()),
        sa.column("epoch", sa.BigInteger()),
        schema=schema,
    )
    made_for = connection.scalar(sa.select(sa.func.count()).select_from(shard)) or 0
    outside = sa.select(outbox.c.event_id, outbox.c.key).where(
        sa.not_(outbox.c.shard.between(0, made_for - 1))
    )
    move = (
        outbox.update()
        .where(outbox.c.event_id == sa.bindparam("moved"))
        .values(shard=sa.bindparam("into"))
    )
    found = connection.execute(outside, execution_options={"yield_per": TOGETHER})
    for rows in found.partitions():
        connection.execute(
            move,
            [
                {"moved": event_id, "into": _shard_of(key, event_id.bytes, made_for)}
                for event_id, key in rows
            ],
        )
    if op.get_context().dialect.name == "postgresql":
        table = connection.dialect.identifier_preparer.format_table(outbox)
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT shield_outbox_shard_check")
    # Moved rows lie on both sides of where a running relay's claims start (its low-water mark). Its
    # mark holds for the epochs that it has seen: so the next claim looks from the beginning.
    # Locked in the order of claims first: no deadlock.
    connection.execute(sa.select(shard.c.shard).order_by(shard.c.shard).with_for_update())
    op.execute(shard.update().values(epoch=shard.c.epoch + 1))


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Leave the rows where they are published from."""


def _shard_of(key: str | None, event_id: bytes, shards: int) -> int:
    return zlib.crc32(key.encode() if key is not None else event_id) % shards
