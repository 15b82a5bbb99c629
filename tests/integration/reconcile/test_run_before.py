"""The run before, as the report of a run names it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from shieldtx.app.reconciliation import request_of
from shieldtx.domain.states import TxKind
from shieldtx.reconcile.config import Configuration
from shieldtx.reconcile.findings import Count, Pair, RunOutcome
from shieldtx.reconcile.request import BrokerAccess, Selection, ServiceDatabase
from shieldtx.reconcile.run_context import DatabaseAddress, EarlierRun, RunContext
from shieldtx.reconcile.verdicts import Verdict
from tests.integration.reconcile.test_stored_runs import configuration, ending, run
from tests.support.migrated_databases import MigratedDatabases

STUCK = Count(
    pair=Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve"),
    verdict=Verdict.STUCK,
    rows=3,
)


@pytest.fixture
def of(databases: MigratedDatabases) -> Iterator[Configuration]:
    with databases.database(4, None) as orders, databases.database(4, None) as stock:
        yield configuration(
            ServiceDatabase(name="orders", url=orders), ServiceDatabase(name="stock", url=stock)
        )


def night(of: Configuration, folder: Path, *counts: Count, **given) -> RunContext:
    """Run once in a folder, with a report in it; return the context of the request."""
    asked = []

    def job(request, _):
        asked.append(request.context)
        folder.mkdir(exist_ok=True)
        (folder / "report.html").touch()
        result = ending(request, counts=counts)
        return replace(result, outcome=result.findings.outcome)

    run(of, job, folder, **given)
    return asked[0]


def earlier(of: Configuration, folder: Path, **given) -> EarlierRun | None:
    return night(of, folder, **given).earlier


def test_first_run_has_no_run_before(of, tmp_path):
    context = night(replace(of, options=("--config", "/n.toml")), tmp_path / "1")
    assert context.earlier is None
    assert context.version == version("shieldtx")
    assert (context.configuration, context.options) == ("nightly", ("--config", "/n.toml"))


def test_next_run_is_compared_with_it_and_linked(of, tmp_path):
    night(of, tmp_path / "night one", STUCK)
    before = earlier(of, tmp_path / "2")
    assert (before.outcome, before.totals) == ("MISMATCHES", {"STUCK": 3})
    assert before.page == "../night%20one/report.html"
    assert earlier(of, tmp_path / "3").page == "../2/report.html"


def test_report_that_is_replaced_or_elsewhere_is_not_linked(of, tmp_path):
    night(of, tmp_path / "1")
    assert earlier(of, tmp_path / "1").page is None
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert earlier(of, elsewhere / "2").page is None
    (elsewhere / "2" / "report.html").unlink()
    assert earlier(of, elsewhere / "3").page is None


def test_numbers_of_another_configuration_are_not_compared(of, tmp_path):
    night(of, tmp_path / "1", STUCK)
    topics = replace(of, broker=BrokerAccess(bootstrap="kafka:9092"))
    assert earlier(topics, tmp_path / "2").totals is None


def test_span_of_time_is_not_compared_in_either_direction(of, tmp_path):
    night(of, tmp_path / "1", STUCK)
    window = Selection(written_since=datetime.now(UTC) - timedelta(hours=1))
    assert earlier(of, tmp_path / "2", selection=window).totals is None
    assert earlier(of, tmp_path / "3").totals == {"STUCK": 3}


def test_run_that_failed_is_not_the_run_before(of, tmp_path):
    night(of, tmp_path / "1", STUCK)

    def failing(request, _):
        return replace(ending(request), outcome=RunOutcome.ERROR, findings=None, problem="oh")

    run(of, failing, tmp_path / "2")
    assert earlier(of, tmp_path / "3").totals == {"STUCK": 3}


def test_databases_are_named_without_secrets(of):
    service = ServiceDatabase(
        name="orders",
        url="postgresql+psycopg://ann:s3cret@db1/orders?sslpassword=hush",
        replica_url="postgresql+psycopg://ann:s3cret@[::1]:6432/orders",
    )
    context = request_of(replace(of, services=(service,)), Path("out")).context
    assert context.databases == (
        DatabaseAddress(service="orders", address="db1:5432/orders", replica="[::1]:6432/orders"),
    )
