"""Events outside of the tables' shards are moved into the shards of their keys.

A writer with another number of shards than the tables wrote them, and no relay has ever seen them.
They are now published in the order in which they were written. Later events of their keys, by other
writers, may have been published before.

Rows that a writer with fewer shards put into an existing shard that is not the shard of their key
stay there: only reading the whole backlog would find them. A relay of that shard publishes them.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import zlib
from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.statements.locks import qualified, validate

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

CONSTRAINT: Final = "shield_outbox_shard_check"
TOGETHER: Final = 5_000
"""Rows of one statement."""


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Move the rows, and validate the constraint; neither blocks writers of the table."""
    if not op.get_context().as_sql:
        _move_rows(op.get_bind(), schema)
    elif not shards:
        op.execute(_refuse_rows(schema))
    if op.get_context().dialect.name == "postgresql":
        op.execute(validate("shield_outbox", CONSTRAINT, schema))
    # Moved rows lie on both sides of a running relay's low-water mark, where its claims start. The
    # mark is valid for the epochs that the relay has seen, so a new epoch makes the next claim
    # start at the beginning. Locked in the order of claims first: no deadlock.
    shard = _shards(schema)
    if not op.get_context().as_sql:
        locked = sa.select(shard.c.shard).order_by(shard.c.shard).with_for_update()
        op.get_bind().execute(locked)
    elif not shards:
        table = qualified("shield_shard", schema)
        op.execute(f"DO $$ BEGIN PERFORM FROM {table} ORDER BY shard FOR UPDATE; END $$")
    op.execute(shard.update().values(epoch=shard.c.epoch + 1))


def _move_rows(connection: sa.Connection, schema: str | None) -> None:
    outbox = sa.table(
        "shield_outbox",
        sa.column("event_id", sa.Uuid()),
        sa.column("key", sa.Text()),
        sa.column("shard", sa.SmallInteger()),
        schema=schema,
    )
    made_for = connection.scalar(sa.select(sa.func.count()).select_from(_shards(schema))) or 0
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


def _refuse_rows(schema: str | None) -> str:
    """Return SQL that refuses rows outside: PostgreSQL has no function for the shard of a key."""
    outbox, shard = (qualified(name, schema) for name in ("shield_outbox", "shield_shard"))
    count = f"SELECT count(*) FROM {shard}"  # noqa: S608  our own names
    is_outside = f"shard < 0 OR shard >= ({count})"
    return (
        f"DO $$ BEGIN IF EXISTS (SELECT FROM {outbox} WHERE {is_outside}) THEN "
        "RAISE EXCEPTION 'the outbox contains events outside of its shards, which SQL cannot move' "
        f"USING HINT = 'Run shieldtx db upgrade {revision}, which moves them.'; "
        "END IF; END $$"
    )


def _shards(schema: str | None) -> sa.TableClause:
    return sa.table(
        "shield_shard",
        sa.column("shard", sa.SmallInteger()),
        sa.column("epoch", sa.BigInteger()),
        schema=schema,
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Leave the rows in their new shards, where relays publish them."""


def _shard_of(key: str | None, event_id: bytes, shards: int) -> int:
    return zlib.crc32(key.encode() if key is not None else event_id) % shards
