"""A failure after the result: a record of a JSON log, a line on standard error without one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from shieldtx.cli import reconcile, workers
from shieldtx.cli.program import program
from shieldtx.reconcile.findings import OutputFolder, RunOutcome
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.relay.result import RelayResult
from shieldtx.store.status import Count, Precision, Unsent

PROBLEM = "Spark's job ended with status 1. The end of spark.log:\n  a line of Spark"


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[str]]:
    """The arguments of two commands that fail after they have printed their result."""
    left = Unsent(events=Count(rows=2, precision=Precision.EXACT), shards=64, shards_held=64)
    status = SimpleNamespace(unsent=lambda: left)
    app = SimpleNamespace(stores=SimpleNamespace(status=lambda: status))
    monkeypatch.setattr(workers, "_checked", lambda _: app)
    monkeypatch.setattr(workers, "check_relay", lambda *_, **__: None)
    monkeypatch.setattr(workers, "_relay_once", lambda _: RelayResult())
    result = ReconcileResult(
        outcome=RunOutcome.ERROR,
        findings=None,
        problem=PROBLEM,
        folder=OutputFolder(path=tmp_path),
    )
    monkeypatch.setattr(reconcile, "require_tables", lambda _: None)
    monkeypatch.setattr(reconcile, "run_reconciliation", lambda *_, **__: result)
    monkeypatch.setenv("ORDERS_URL", "postgresql+psycopg://ann@127.0.0.1/orders")
    config = tmp_path / "reconcile.toml"
    config.write_text('[services.orders]\nurl = "ORDERS_URL"\n')
    return {"relay": ["relay", "--once"], "reconcile": ["reconcile", "--config", str(config)]}


each_command = pytest.mark.parametrize(
    ("command", "status", "error"),
    [("relay", 1, "2 due events remain unsent"), ("reconcile", 3, PROBLEM)],
)


@each_command
def test_failure_is_a_record_of_a_json_log(
    failing: dict[str, list[str]], command: str, status: int, error: str
):
    done: Any = CliRunner().invoke(program, [*failing[command], "--log-format", "json"])
    record = json.loads(done.stderr)
    assert (record["action"], record["exit_status"]) == ("command_failed", status)
    assert record["error"].startswith(error)
    assert done.exit_code == status


@each_command
def test_failure_is_a_line_with_a_plain_log(
    failing: dict[str, list[str]], command: str, status: int, error: str
):
    done: Any = CliRunner().invoke(program, failing[command])
    assert done.stderr.startswith(f"error: {error}")
    assert done.exit_code == status
