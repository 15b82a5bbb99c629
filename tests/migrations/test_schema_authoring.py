"""Alembic's own command, for developers who write the next migration."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from shieldtx._resources import resource_folder
from shieldtx.store.schema import Schema
from tests.support.project import ROOT
from tests.support.revisions import HEAD, LATER


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the files that Alembic needs, to write migrations into."""
    shutil.copytree(resource_folder("migrations"), tmp_path / "migrations")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "shieldtx").symlink_to(ROOT / "shieldtx")
    return tmp_path


def alembic(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_alembic_upgrades_checks_and_downgrades(
    checkout: Path, engine: Engine, database_url: str
) -> None:
    database = ("-x", f"url={database_url}", "-x", "schema=messages")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE theirs (id int)"))

    for arguments in (["upgrade", "head"], ["check"]):
        ended = alembic(checkout, *database, *arguments)
        assert ended.returncode == 0, ended.stderr
    Schema(engine, schema="messages").check()

    ended = alembic(checkout, *database, "downgrade", "base")
    assert ended.returncode == 0, ended.stderr
    assert Schema(engine, schema="messages").current() is None


def test_alembic_without_a_database_explains_how_to_name_one(checkout: Path) -> None:
    ended = alembic(checkout, "upgrade", "head")

    assert ended.returncode != 0
    assert "alembic -x url=" in ended.stdout + ended.stderr


def test_new_migration_starts_from_the_template(
    checkout: Path, engine: Engine, database_url: str
) -> None:
    Schema(engine).upgrade()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE shield_relay DROP COLUMN started_at"))

    ended = alembic(
        checkout,
        *("-x", f"url={database_url}", "revision", "--autogenerate"),
        *("--rev-id", LATER, "-m", "the start of a relay"),
    )

    assert ended.returncode == 0, ended.stderr
    scripts = ScriptDirectory(str(checkout / "migrations"))
    written = scripts.get_revision(LATER)
    assert Path(written.path).name == f"{LATER}_the_start_of_a_relay.py"
    assert written.down_revision == HEAD
    for function in (written.module.upgrade, written.module.downgrade):
        assert list(inspect.signature(function).parameters) == ["op", "schema", "shards"]
    assert "op.add_column('shield_relay'" in Path(written.path).read_text()


def test_empty_migration_refuses_to_run_until_written(checkout: Path, database_url: str) -> None:
    ended = alembic(checkout, "revision", "--rev-id", LATER, "-m", "nothing yet")
    assert ended.returncode == 0, ended.stderr

    ended = alembic(checkout, "-x", f"url={database_url}", "upgrade", "head")

    assert ended.returncode != 0
    assert "NotImplementedError" in ended.stderr
