"""The number of shards becomes a property of the tables: new rows must lie within these shards.

The constraint does not check existing rows, so that writers wait only for its lock. The next
revision moves the rows outside.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.statements.locks import qualified

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NAME: Final = "shield_outbox_shard_check"


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:
    """Make the table refuse rows of shards that have no lease row."""
    if op.get_context().as_sql:
        _write_constraint(op, schema, shards)
        return
    shard = sa.table("shield_shard", schema=schema)
    made_for = op.get_bind().scalar(sa.select(sa.func.count()).select_from(shard))
    if op.get_context().dialect.name == "sqlite":
        # SQLite cannot add a constraint to a table.
        for event in ("INSERT", "UPDATE OF shard"):
            op.execute(
                f"CREATE TRIGGER {_trigger(event)} BEFORE {event} ON shield_outbox "
                f"WHEN NEW.shard NOT BETWEEN 0 AND {made_for} - 1 "
                f"BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: {NAME}'); END"
            )
        return
    _add_constraint(op, schema, made_for)


def _add_constraint(op: Operations, schema: str | None, shards: int | None) -> None:
    op.create_check_constraint(
        op.f(NAME),
        "shield_outbox",
        f"shard >= 0 AND shard < {shards}",
        schema=schema,
        postgresql_not_valid=True,
    )


def _write_constraint(op: Operations, schema: str | None, shards: int) -> None:
    """Write the constraint as SQL; for existing tables, the server counts the shards."""
    if shards:
        _add_constraint(op, schema, shards)
        return
    outbox, shard = (qualified(name, schema) for name in ("shield_outbox", "shield_shard"))
    count = f"(SELECT count(*) FROM {shard})"  # noqa: S608  our own names
    op.execute(
        f"DO $$ BEGIN EXECUTE format('ALTER TABLE {outbox} ADD CONSTRAINT {NAME} "
        f"CHECK (shard >= 0 AND shard < %s) NOT VALID', {count}); END $$"
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Make the table accept any shard."""
    if op.get_context().dialect.name == "sqlite":
        for event in ("INSERT", "UPDATE OF shard"):
            op.execute(f"DROP TRIGGER {_trigger(event)}")
        return
    op.drop_constraint(NAME, "shield_outbox", schema=schema)


def _trigger(event: str) -> str:
    return f"{NAME}_{event.split(maxsplit=1)[0].lower()}"
