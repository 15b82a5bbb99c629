"""`shieldtx db downgrade`: the plan, the question, and the refusal to lose rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text
from typer.testing import CliRunner

from shieldtx.cli.program import program
from tests.support.revisions import EARLIER, HEAD


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/orders.db")
    yield engine
    engine.dispose()


@pytest.fixture
def run(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Run a command of a service with upgraded tables; `answer` is what the operator types."""
    monkeypatch.setenv("SHIELDTX_SOURCE", "orders")
    monkeypatch.setenv("SHIELDTX_DATABASE_URL", str(engine.url))

    def invoke(*words: str, answer: str = "") -> Any:
        return CliRunner().invoke(program, ("db", *words), input=answer)

    assert invoke("upgrade").exit_code == 0
    return invoke


def current(engine: Engine) -> str | None:
    if not inspect(engine).has_table("shield_version"):
        return None
    with engine.connect() as connection:
        return connection.scalar(text("SELECT version_num FROM shield_version"))


def write(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def purge_time(engine: Engine) -> None:
    write(engine, "INSERT INTO shield_purged VALUES ('outbox', '2026-01-01')")


def test_question_shows_the_plan_and_yes_runs_it(run, engine):
    result = run("downgrade", "0015", answer="y\n")

    assert (result.exit_code, result.stdout) == (
        0,
        f"the tables are at revision 0015 now (before: {HEAD})\n",
    )
    assert "takes back revision 0017: The time up to which outbox" in result.stderr
    assert "takes back revision 0016: Runs of the reconciliation" in result.stderr
    assert "takes back revision 0015" not in result.stderr
    assert "drops the table shield_purged\n" in result.stderr
    assert "drops the column shield_reconcile_run.basis\n" in result.stderr
    assert f"Take the tables back from {HEAD} to 0015? [y/N] " in result.stderr
    assert current(engine) == "0015"


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "0015\n"])
def test_other_answers_change_nothing(run, engine, answer):
    result = run("downgrade", "0015", answer=answer)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Aborted: nothing was changed" in result.stderr
    assert current(engine) == HEAD


def test_lost_rows_are_refused_without_yes(run, engine):
    purge_time(engine)

    result = run("downgrade", "0016", answer="y\n")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "drops the table shield_purged with 1 row\n" in result.stderr
    assert "would lose the rows of shield_purged (1 row): keep a copy" in result.stderr
    assert "[y/N]" not in result.stderr
    assert current(engine) == HEAD

    result = run("downgrade", "0016", "--yes")
    assert result.exit_code == 0
    assert current(engine) == "0016"


def test_base_counts_the_rows_of_all_tables(run, engine):
    audit = "INSERT INTO shield_audit (at, who, action, subject, detail)"
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001)"
    write(engine, f"{audit} {many} SELECT '2026-01-01', 'a', 'b', 'c', 'd' FROM n")
    purge_time(engine)

    result = run("downgrade", "base")
    assert result.exit_code == 2
    assert "rows of shield_purged (1 row), shield_audit (more than 10,000 rows): " in result.stderr
    # Each upgrade writes the rows of the shards: their loss needs no --yes.
    assert "drops the table shield_shard\n" in result.stderr

    result = run("downgrade", "base", "--yes", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "before": HEAD,
        "revision": None,
        "lost": {"shield_purged": 1, "shield_audit": 10001},
    }
    assert inspect(engine).get_table_names() == []


def test_rows_with_a_remedy_are_refused_with_yes_too(run, engine):
    run_row = "INSERT INTO shield_reconcile_run (run_id, scope, mode, who, started_at, lease_until)"
    write(engine, f"{run_row} VALUES ('r', 's', 'm', 'w', '2026-01-01', '2026-01-01')")

    result = run("downgrade", "0002", "--yes")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "there are stored runs of the reconciliation (1), which would be lost" in result.stderr
    assert result.stderr.count("\n") == 1
    assert current(engine) == HEAD


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("9999", "there is no revision 9999"),
        ("", "there is no revision ''"),
        ("x'; DROP TABLE shield_outbox; --", "x'; DROP TABLE shield_outbox; --"),
        ("0016:0015", "no way from revision"),
    ],
)
def test_unsuitable_revision_is_one_line(run, engine, revision, message):
    result = run("downgrade", revision, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert current(engine) == HEAD


def test_newer_revision_is_refused(run, engine):
    run("downgrade", "0015", "--yes")
    result = run("downgrade", "0016", "--yes")
    assert result.exit_code == 2
    assert result.stderr == ("error: no way down from revision 0015 to 0016, which is not older\n")


def test_present_revision_and_missing_tables_need_no_question(run, engine):
    for revision in (HEAD, "head"):
        result = run("downgrade", revision)
        assert result.output == f"the tables are at revision {HEAD} already\n"
    run("downgrade", "base", "--yes")
    assert run("downgrade", "base").output == "there are no tables\n"
    assert run("downgrade", "0016").output == "there are no tables\n"


def test_upgrade_after_a_downgrade_leads_back(run, engine):
    run("downgrade", "-1", "--yes")
    assert current(engine) == HEAD  # `-1` is an option; `--` ends the options
    assert run("downgrade", "--yes", "--", "-1").exit_code == 0
    assert current(engine) == EARLIER[0]
    assert run("upgrade").exit_code == 0
    assert run("check").exit_code == 0
