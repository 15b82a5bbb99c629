"""A later release of shieldtx, which differs only in its migrations."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from shieldtx._resources import resource_folder
from shieldtx.cli import main
from shieldtx.store import migration_scripts

LATER_REVISION = "later"

_MIGRATION = f"""
import sqlalchemy as sa

revision = "{LATER_REVISION}"
down_revision = "%s"


def upgrade(op, *, schema, shards):
    for table in ("shield_outbox", "shield_inbox"):
        op.add_column(table, sa.Column("later", sa.Text(), server_default="x"), schema=schema)


def downgrade(op, *, schema, shards):
    for table in ("shield_outbox", "shield_inbox"):
        op.drop_column(table, "later", schema=schema)
"""


def make_later_release(folder: Path, head: str) -> Path:
    """Write the migrations of a release that adds a column to the schema at `head`."""
    later = folder / "later_release"
    shutil.copytree(
        resource_folder("migrations"), later, ignore=shutil.ignore_patterns("__pycache__")
    )
    (later / "versions" / "later.py").write_text(_MIGRATION % head)
    return later


def run_later_release(migrations: str, *words: str) -> None:
    """Run `shieldtx` with these arguments as the later release does."""
    migration_scripts.resource_folder = lambda _: Path(migrations)
    sys.argv = ["shieldtx", *words]
    main()
