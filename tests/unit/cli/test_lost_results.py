"""The exit status of a command whose results get lost: never that of an outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shieldtx.reconcile.findings import RunOutcome

RECONCILED = """
import sys
from pathlib import Path
from shieldtx.cli import reconcile
from shieldtx.cli.program import program
from shieldtx.reconcile.findings import Findings, OutputFolder, RunOutcome
from shieldtx.reconcile.spark_launcher import ReconcileResult
from tests.unit.cli.test_reconcile_by_cron import findings

result = ReconcileResult(
    outcome=RunOutcome.CLEAN,
    findings=findings(),
    problem="",
    folder=OutputFolder(path=Path("reconciliation")),
)
reconcile.require_tables = lambda _: None
reconcile.run_reconciliation = lambda *_, **__: result
program(prog_name="shieldtx")
"""
OTHER = "from shieldtx.cli import main; main()"
# The command changes no row: its own exit status is 1, after its result.
RESCHEDULE = ("delayed", "reschedule", "01938d6e-5b1f-7cc1-a3b0-1f9a53a0c0de", "--delay", "60")

each_form = pytest.mark.parametrize(
    ("form", "unbuffered"), [((), "1"), (("--json",), "")], ids=["unbuffered", "buffered json"]
)
each_loss = pytest.mark.parametrize(
    ("redirection", "line"),
    [
        (">&-", "error: standard output is closed: send it to /dev/null to do without results\n"),
        (">/dev/full", "error: standard output takes no results: No space left on device\n"),
        ("| true", ""),
    ],
)


class Service:
    """A service whose database is a file, and whose commands run in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = os.environ | {
            "SHIELDTX_SOURCE": "orders",
            "SHIELDTX_DATABASE_URL": f"sqlite:///{folder}/orders.db",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        (folder / "reconcile.toml").write_text('[services.orders]\nurl = "SHIELDTX_DATABASE_URL"\n')

    def run(
        self, script: str, *words: str, redirection: str = "", unbuffered: str = ""
    ) -> subprocess.CompletedProcess[str]:
        shell = f'set -o pipefail; "$@" {redirection}'
        return subprocess.run(
            ["bash", "-c", shell, "bash", sys.executable, "-c", script, *words],
            env=self.variables | {"PYTHONUNBUFFERED": unbuffered},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


@each_loss
@each_form
def test_reconciliation_without_its_results_is_an_error(
    service: Service, redirection: str, line: str, form: tuple[str, ...], unbuffered: str
):
    words = ("reconcile", "--config", "reconcile.toml", *form)

    lost = service.run(RECONCILED, *words, redirection=redirection, unbuffered=unbuffered)

    assert (lost.returncode, lost.stderr) == (RunOutcome.ERROR, line)


def test_reconciliation_with_its_results_has_its_outcome(service: Service):
    done = service.run(RECONCILED, "reconcile", "--config", "reconcile.toml", "--json")
    assert (done.returncode, done.stderr) == (RunOutcome.CLEAN, "")


@each_loss
def test_other_command_without_its_results_has_failed(
    service: Service, redirection: str, line: str
):
    service.run(OTHER, "db", "upgrade")

    lost = service.run(OTHER, *RESCHEDULE, "--json", redirection=redirection)

    assert (lost.returncode, lost.stderr) == (1, line)
