"""The key of parked records includes their content: a recreated topic reuses its offsets.

The digests of existing records are computed online, in batches, and block no writer.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import sqlalchemy as sa
from alembic.operations import Operations

from shieldtx.store.online import refuse_rows
from shieldtx.store.statements.locks import qualified

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLE: Final = "shield_parked"
PLACE: Final = ("consumer_group", "topic", "record_partition", "record_offset")
PENDING: Final = "pending"
"""In place of the digest of a record that was parked before this revision."""
TOGETHER: Final = 100
"""Rows of one transaction; each may contain megabytes."""


class Digests:
    """The digests of records that were parked before; one transaction computes a batch of them."""

    name = "digests of parked records"
    table = TABLE

    def is_done(self, connection: sa.Connection, schema: str | None) -> bool:
        """Whether every record has its digest; the empty digest of a former release counts too."""
        parked = _table(schema)
        pending = sa.select(parked.c.topic).where(parked.c.digest == PENDING).limit(1)
        return connection.execute(pending).first() is None

    def make(self, op: Operations, schema: str | None, *, online: bool) -> None:  # noqa: ARG002  one signature for all
        """Compute the digests in batches; those of an interrupted upgrade stay."""
        if op.get_context().as_sql:
            for statement in _digest_statements(schema):
                op.execute(statement)
            return
        while _make_digests(op.get_bind(), schema):
            pass


ONLINE: Final = (Digests(),)


def upgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Add the digest to the key. A former release meanwhile parks with an empty digest."""
    digest = sa.Column("digest", sa.Text(), nullable=False, server_default=PENDING)
    _with_key(op, schema, (*PLACE, "digest"), adding=digest)
    with op.batch_alter_table(TABLE, schema=schema) as batch:
        batch.alter_column("digest", existing_type=sa.Text(), server_default="")


def _make_digests(connection: sa.Connection, schema: str | None) -> bool:
    """Compute the digests of some records, one statement each; return False where none is left."""
    parked = _table(schema)
    columns = [parked.c[name] for name in PLACE]
    contents = [parked.c.record_key, parked.c.record_value, parked.c.record_headers]
    is_pending = parked.c.digest == PENDING
    is_row = sa.and_(is_pending, *(c == sa.bindparam(f"of_{c.name}") for c in columns))
    other = parked.alias()
    # The new release may have parked the record again meanwhile.
    is_known = sa.exists().where(
        *(other.c[name] == parked.c[name] for name in PLACE),
        other.c.digest == sa.bindparam("made"),
    )
    change = parked.update().where(is_row, sa.not_(is_known))
    change = change.values(digest=sa.bindparam("made"))
    rows = []
    places = connection.execute(sa.select(*columns).where(is_pending).limit(TOGETHER)).all()
    for place in places:
        row = {f"of_{name}": value for name, value in zip(PLACE, place, strict=True)}
        found = connection.execute(sa.select(*contents).where(is_row), row).one_or_none()
        if found is not None:  # None: it has just been discarded or replayed
            rows.append(row | {"made": _digest(*found)})
    if rows:
        connection.execute(change, rows)
        connection.execute(parked.delete().where(is_row, is_known), rows)
    return bool(places)


def _digest_statements(schema: str | None) -> tuple[str, str]:
    """Return SQL that computes all digests, as `_digest`, and deletes what was parked again."""
    parked = qualified(TABLE, schema)
    parts = ("p.record_key", "p.record_value", "convert_to(p.record_headers, 'UTF8')")
    content = " || ".join(
        f"coalesce(convert_to(octet_length({part}) || ':', 'UTF8') || {part}, "
        "convert_to('-', 'UTF8'))"
        for part in parts
    )
    made = f"left(encode(sha256({content}), 'hex'), 16)"
    same_place = " AND ".join(f"other.{name} = p.{name}" for name in PLACE)
    known = f"SELECT FROM {parked} AS other WHERE {same_place} AND other.digest = {made}"
    is_pending = f"digest = '{PENDING}'"
    return (
        f"UPDATE {parked} AS p SET digest = {made} WHERE {is_pending} AND NOT EXISTS ({known})",  # noqa: S608  our own names
        f"DELETE FROM {parked} WHERE {is_pending}",  # noqa: S608  our own names
    )


def refuse_downgrade(connection: sa.Connection, *, schema: str | None) -> None:
    """Refuse if records of a recreated topic and of the former one would have the same key."""
    parked = _table(schema)
    columns = [parked.c[name] for name in PLACE]
    refuse_rows(
        connection,
        sa.select(*columns).group_by(*columns).having(sa.func.count() > 1).order_by(*columns),
        what="places of parked records that several records share, of a recreated topic",
        loss="which the former tables cannot hold",
        remedy="Delete all but one record of each place from shield_parked first",
    )


def downgrade(op: Operations, *, schema: str | None, shards: int) -> None:  # noqa: ARG001  one signature for all
    """Remove the digest from the key."""
    _with_key(op, schema, PLACE, dropping="digest")


def _with_key(
    op: Operations,
    schema: str | None,
    key: tuple[str, ...],
    *,
    adding: sa.Column[str] | None = None,
    dropping: str | None = None,
) -> None:
    with op.batch_alter_table(TABLE, schema=schema) as batch:
        if adding is not None:
            batch.add_column(adding)
        batch.drop_constraint("shield_parked_pkey", type_="primary")
        batch.create_primary_key("shield_parked_pkey", list(key))
        if dropping is not None:
            batch.drop_column(dropping)


def _table(schema: str | None) -> sa.TableClause:
    return sa.table(
        TABLE,
        sa.column("consumer_group", sa.Text()),
        sa.column("topic", sa.Text()),
        sa.column("record_partition", sa.Integer()),
        sa.column("record_offset", sa.BigInteger()),
        sa.column("record_key", sa.LargeBinary()),
        sa.column("record_value", sa.LargeBinary()),
        sa.column("record_headers", sa.Text()),
        sa.column("digest", sa.Text()),
        schema=schema,
    )


def _digest(key: bytes | None, value: bytes | None, headers: str) -> str:
    found = sha256()
    for part in (key, value, headers.encode()):
        found.update(b"-" if part is None else f"{len(part)}:".encode() + part)
    return found.hexdigest()[:16]
