"""`shieldtx db upgrade` to a revision that is not the newest, and its SQL."""

from __future__ import annotations

import json
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


def test_older_revision_names_the_downgrade(run):
    run("db", "upgrade", "0015")
    result = run("db", "upgrade", "0010")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: the tables are at revision 0015, and this command does not downgrade them to 0010: "
        "run `shieldtx db downgrade 0010`\n"
    )
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


@pytest.mark.parametrize(
    ("revision", "named"), [("9999", "9999"), ("", "''"), ("@", "@"), ("head+1", "head+1")]
)
def test_unknown_revision_is_named_with_the_newest(run, revision: str, named: str):
    result = run("db", "upgrade", revision)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: there is no revision {named} (newest: 00")


def test_upgrade_of_no_tables_to_none_is_no_downgrade(run):
    result = run("db", "upgrade", "base")
    assert result.exit_code == 0
    assert result.stdout == "the tables are at revision base already\n"
    assert "warning: the tables do not exist yet" in result.stderr


def test_other_number_of_shards_is_a_variable_to_set(run):
    run("db", "upgrade")
    result = run("db", "check", SHIELDTX_SHARDS="16")
    assert result.exit_code == 2
    assert "not for 16: set SHIELDTX_SHARDS=64 or unset it" in result.stderr


POSTGRESQL = "postgresql+psycopg://ann:secret@127.0.0.1:1/orders"
"""Nothing listens there."""


def test_sql_is_printed_without_a_connection(run):
    result = run("db", "upgrade", "--sql", SHIELDTX_DATABASE_URL=POSTGRESQL, SHIELDTX_SHARDS="8")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("-- shieldtx ")
    assert ", with 8 shards.\n" in result.stdout
    assert "\nCREATE TABLE shield_outbox (\n" in result.stdout
    assert result.stdout.endswith("COMMIT;\n\n")
    assert "secret" not in result.stdout


def test_sql_as_json_is_the_same(run):
    command = ("db", "upgrade", "0016:head", "--sql")
    text = run(*command, SHIELDTX_DATABASE_URL=POSTGRESQL).stdout
    parsed = json.loads(run(*command, "--json", SHIELDTX_DATABASE_URL=POSTGRESQL).stdout)
    assert parsed == {"sql": text}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0016:head"], "0016:head: only with --sql, which prints the SQL of an upgrade"),
        (["--server-version", "16"], "--server-version: only with --sql, which prints"),
        (["--sql", "--patience", "5"], "--patience: the SQL has its own limits; leave it out"),
        (["--sql", "--server-version", "13"], "--server-version: 13 is not a supported major"),
        (["--sql", "0003:head"], "exists from PostgreSQL 16 on: name the major version of the"),
        (["--sql", "+1:head"], "there is no revision '+1' to start from: name it, or base"),
        (["--sql", ":head"], "there is no revision '' to start from: name it, or base"),
        (["--sql", "0016:"], "there is no revision '' (newest: 00"),
        (["--sql", "0016:0003"], "revision 0003 is not above 0016: there is nothing to do"),
        (["--sql", "x'; DROP TABLE a; --:head"], 'there is no revision "x\'; DROP TABLE a; --"'),
        (["--sql", "head:head:head"], "there is no revision 'head:head' to start from"),
    ],
)
def test_unsuitable_options_of_sql_are_one_line(run, words, message):
    result = run("db", "upgrade", *words, SHIELDTX_DATABASE_URL=POSTGRESQL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_sql_for_sqlite_is_refused(run):
    result = run("db", "upgrade", "--sql")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "error: there is no SQL of an upgrade for sqlite: run `shieldtx db upgrade`\n"
    )
