"""`shieldtx db upgrade` to a revision that is not the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shieldtx.cli.program import program


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a command of a service whose database is a file."""
    monkeypatch.setenv("SHIELDTX_SOURCE", "orders")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", f"sqlite:///{tmp_path}/orders.db")

    def invoke(*words: str, **variables: str) -> Any:
        return CliRunner().invoke(program, words, env=variables)

    return invoke


def test_older_revision_is_no_downgrade(run):
    run("db", "upgrade", "0015")
    result = run("db", "upgrade", "0010")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "at revision 0015, and this command does not downgrade them to 0010" in result.stderr
    assert run("db", "current").stdout == "0015\n"


def test_revision_below_the_newest_is_a_warning(run):
    for _ in range(2):
        result = run("db", "upgrade", "0015")
        assert result.exit_code == 0
        assert "warning: the tables are at revision 0015, this shieldtx needs 00" in result.stderr
    assert "already" in result.stdout


def test_upgrade_to_the_newest_has_no_warning(run):
    for revision in ("head", "head"):
        assert run("db", "upgrade", revision).stderr == ""


def test_unknown_revision_is_named_with_the_newest(run):
    result = run("db", "upgrade", "9999")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no revision 9999 (newest: 00")


def test_other_number_of_shards_is_a_variable_to_set(run):
    run("db", "upgrade")
    result = run("db", "check", SHIELDTX_SHARDS="16")
    assert result.exit_code == 2
    assert "not for 16: set SHIELDTX_SHARDS=64 or unset it" in result.stderr
