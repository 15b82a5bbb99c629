"""The revisions of the tables: those of this release, and one of a later release."""

from __future__ import annotations

from alembic.script import ScriptDirectory

from shieldtx._resources import resource_folder

_SCRIPTS = ScriptDirectory(str(resource_folder("migrations")))

HEAD = str(_SCRIPTS.get_current_head())
"""The latest revision of this release."""

EARLIER = [script.revision for script in _SCRIPTS.walk_revisions()][1:]
"""The other revisions of this release, the latest first."""

LATER = f"{int(HEAD) + 1:04}"
"""The revision of a later release."""

LATER_REVISION = f"""
import sqlalchemy as sa
from shieldtx.store.online import LargeIndex

revision = "{LATER}"
down_revision = "{HEAD}"

ONLINE = (LargeIndex(name="shield_outbox_note_idx", table="shield_outbox", columns=("note",)),)


def upgrade(op, *, schema, shards):
    op.add_column("shield_outbox", sa.Column("note", sa.Text()), schema=schema)


def downgrade(op, *, schema, shards):
    op.drop_column("shield_outbox", "note", schema=schema)
"""
