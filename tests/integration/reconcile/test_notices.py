"""The runs after which the webhook of a configuration is called; Spark takes no part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from shieldtx.app import reconciliation
from shieldtx.app.reconciliation import request_of, run_reconciliation, stored_runs
from shieldtx.domain.states import TxKind
from shieldtx.embedded.free_ports import free_port
from shieldtx.errors import AlreadyRunning, LeaseLost, NameTaken
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import Count, Pair, RunOutcome
from shieldtx.reconcile.request import Selection, ServiceDatabase
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.webhook import Webhook
from tests.integration.reconcile.test_stored_runs import configuration, ending
from tests.support.migrated_databases import MigratedDatabases
from tests.support.webhook_server import WebhookServer, webhook_server

STUCK = Count(
    pair=Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve"),
    verdict=Verdict.STUCK,
    rows=3,
)
Night = Callable[..., ReconcileResult]


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with webhook_server() as running:
        yield running


@pytest.fixture
def of(databases: MigratedDatabases, server: WebhookServer) -> Iterator[Configuration]:
    with databases.database(4, None) as orders, databases.database(4, None) as stock:
        yield replace(
            configuration(
                ServiceDatabase(name="orders", url=orders), ServiceDatabase(name="stock", url=stock)
            ),
            webhook=Webhook(url=server.url, allow_http=True),
        )


@pytest.fixture
def night(of: Configuration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """Run once; the job finds the given rows, or raises or returns the given outcome."""

    def one(*counts: Count, error: Exception | None = None, failed: bool = False, **given):
        def job(request, **_):
            if error is not None:
                raise error
            result = replace(ending(request, counts=counts), run_id=request.run_id)
            if failed:
                return replace(result, outcome=RunOutcome.ERROR, findings=None, problem="secret")
            return replace(result, outcome=result.findings.outcome)

        monkeypatch.setattr(reconciliation.spark_launcher, "run", job)
        asked = request_of(of, tmp_path)
        return run_reconciliation(of, asked, given.get("selection"), who="ann@desk")

    return one


def outcomes(server: WebhookServer) -> list[tuple[str, str | None, bool]]:
    return [(b["outcome"], b["previous_outcome"], b["recovered"]) for b in server.bodies]


def test_nights_that_are_not_clean_and_the_recovery_are_noticed(night, server, of) -> None:
    night()
    night(STUCK)
    last = night(STUCK)
    night()
    night()
    assert outcomes(server) == [
        ("MISMATCHES", "CLEAN", False),
        ("MISMATCHES", "MISMATCHES", False),
        ("CLEAN", "MISMATCHES", True),
    ]
    assert server.bodies[1]["run_id"] == last.run_id
    assert server.bodies[2]["text"].endswith("Recovered after MISMATCHES.")
    with stored_runs(of) as runs:
        assert len(runs.latest(limit=9)) == 5


def test_first_clean_run_is_not_a_recovery(night, server) -> None:
    night()
    assert server.bodies == []


def test_run_that_failed_is_noticed_without_its_reason(night, server) -> None:
    assert night(failed=True).outcome is RunOutcome.ERROR
    with pytest.raises(LeaseLost):
        night(error=LeaseLost("secret"))
    night()
    assert outcomes(server) == [
        ("ERROR", None, False),
        ("ERROR", "ERROR", False),
        ("CLEAN", "ERROR", True),
    ]
    assert "secret" not in str(server.bodies)


@pytest.mark.parametrize(("error", "noticed"), [(AlreadyRunning, 0), (NameTaken, 1)])
def test_run_of_another_machine_is_noticed_there(night, server, error, noticed) -> None:
    with pytest.raises(error):
        night(error=error("busy"))
    assert len(server.bodies) == noticed


def test_clean_span_of_time_is_not_a_recovery(night, server) -> None:
    window = Selection(written_since=datetime.now(UTC) - timedelta(hours=1))
    night(STUCK)
    night(selection=window)
    assert outcomes(server) == [("MISMATCHES", None, False)]
    night()
    assert outcomes(server)[1:] == [("CLEAN", "MISMATCHES", True)]


def test_webhook_that_refuses_changes_nothing(night, server, of) -> None:
    server.status = 404
    assert night(STUCK).outcome is RunOutcome.MISMATCHES
    with stored_runs(of) as runs:
        assert [run.outcome for run in runs.latest(limit=9)] == ["MISMATCHES"]


def test_unreachable_first_database_is_noticed(of, server, tmp_path) -> None:
    home = replace(of.services[0], url=f"postgresql+psycopg://a:b@127.0.0.1:{free_port()}/orders")
    away = replace(of, services=(home, of.services[1]))
    with pytest.raises(OperationalError):
        run_reconciliation(away, request_of(away, tmp_path), who="ann@desk")
    assert outcomes(server) == [("ERROR", None, False)]


@pytest.mark.parametrize("status", [204, 404])
def test_exit_status_of_the_command_ignores_the_webhook(
    server, tmp_path: Path, status: int
) -> None:
    server.status = status
    file = tmp_path / "reconcile.toml"
    file.write_text(
        '[webhook]\nurl = "HOOK"\nallow_http = true\n'
        '[services.orders]\nurl = "ORDERS_URL"\nretention = "P7D"\n'
    )
    ended = subprocess.run(
        [
            Path(sys.executable).with_name("shieldtx"),
            "reconcile",
            "--config",
            file,
            "--out",
            tmp_path / "o",
        ],
        env={
            **os.environ,
            "HOOK": server.url,
            "ORDERS_URL": f"postgresql+psycopg://a:b@127.0.0.1:{free_port()}/orders",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == RunOutcome.ERROR
    assert outcomes(server) == [("ERROR", None, False)]
    assert ("reconciliation_webhook_failed" in ended.stderr) == (status == 404)
    assert "s3cret-path" not in ended.stdout + ended.stderr
