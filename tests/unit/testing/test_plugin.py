"""The pytest plugin: in each run of a user, so it must be light; servers for each worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.project import ROOT

PLUGIN = ("-p", "shieldtx.testing.plugin", "-p", "no:cacheprovider")
UNUSED = """
import sys

def test_nothing_of_shieldtx_is_imported():
    imported = {name for name in sys.modules if name.split(".")[0] == "shieldtx"}
    assert imported == {"shieldtx", "shieldtx.testing", "shieldtx.testing.plugin"}
    assert not {"sqlalchemy", "pydantic", "kafka", "alembic"} & set(sys.modules)
"""
USED = """
from shieldtx import Event, ShieldTx

shield = ShieldTx.from_env()
shield.declare("orders.placed")

def test_an_event(shieldtx_memory):
    app = shieldtx_memory(shield)
    with app.session() as session:
        shield.outbox.add(session, Event(type="orders.placed"))
    assert app.drain().published == 1

def test_the_service_is_as_before():
    assert not shield.is_wired
"""
SERVER = """
import os

def test_a_database(shieldtx_postgres):
    shieldtx_postgres.create_database("own")
    with open(f"server-{os.environ['PYTEST_XDIST_WORKER']}", "w") as file:
        file.write(str(shieldtx_postgres.port))
"""


def run(folder: Path, text: str, options: Sequence[str] = ()) -> str:
    """Run a test of a user, outside of this repository; return the output."""
    (folder / "test_user.py").write_text(text)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SHIELDTX"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *options, "test_user.py"],
        cwd=folder,
        # Without the installed plugins, and so without the editable package's own entry point.
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_without_shieldtx_imports_none_of_it(tmp_path: Path) -> None:
    run(tmp_path, UNUSED, PLUGIN)


def test_a_run_with_a_memory_app_has_no_warning(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path, USED, PLUGIN)


@pytest.mark.timeout(180)
def test_each_worker_has_a_server(tmp_path: Path) -> None:
    text = SERVER + SERVER.replace("a_database", "another").replace('"own"', '"other"')
    run(tmp_path, text, [*PLUGIN, "-p", "xdist", "-n2", "--dist=each"])
    ports = {path.read_text() for path in tmp_path.glob("server-*")}
    assert len(ports) == 2


def test_the_plugin_is_registered() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nshieldtx = "shieldtx.testing.plugin"' in text
