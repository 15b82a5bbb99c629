"""One folder per run, with jobs that replace those of Spark."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shieldtx.domain.states import TxKind
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile import report_folder, spark_launcher
from shieldtx.reconcile.findings import Count, Findings, OutputFolder, Pair, RunOutcome, to_json
from shieldtx.reconcile.report_folder import locked, new_folder
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase
from shieldtx.reconcile.spark_launcher import ReconcileResult
from shieldtx.reconcile.verdicts import Verdict
from tests.conftest import wait
from tests.support.project import ROOT

JOB = """
import os, pathlib, sys, time
sys.stdin.readline()
source, folder, status, go, lingering = sys.argv[1:]
folder = pathlib.Path(folder)
(folder / "rows").mkdir(exist_ok=True)
(folder / "summary.json").write_bytes(pathlib.Path(source).read_bytes())
if lingering and os.fork() == 0:
    time.sleep(3)
    sys.exit()
print("is written", flush=True)
while go and not pathlib.Path(go).exists():
    time.sleep(0.01)
sys.exit(int(status))
"""
KILLED = """
import sys
from pathlib import Path
from shieldtx.reconcile.findings import OutputFolder
from shieldtx.reconcile.report_folder import locked
from shieldtx.reconcile.request import from_json
request = from_json(sys.stdin.readline())
with locked(OutputFolder(path=request.folder), request):
    print("locked", flush=True)
    sys.stdin.read()
"""


class Runs:
    """Runs in one folder, whose jobs write prepared findings and exit with a prepared status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "reconciliation"
        self.go = folder / "go"
        self._work = folder
        self._jobs: dict[str, list[str]] = {}
        self._local = threading.local()

    def plan(
        self,
        run_id: str,
        verdict: Verdict = Verdict.MATCHED,
        *,
        status: int = RunOutcome.CLEAN,
        found_by: str | None = None,
        waits: bool = False,
        lingering: bool = False,
    ) -> None:
        source = self._work / f"{run_id}.json"
        source.write_bytes(to_json(found(found_by or run_id, verdict)))
        arguments = [str(source), str(self.folder), str(int(status))]
        flags = [str(self.go) if waits else "", "x" if lingering else ""]
        self._jobs[run_id] = [sys.executable, "-c", JOB, *arguments, *flags]

    def command(self, _master: str) -> tuple[list[str], dict[str, str]]:
        return self._local.job, {}

    def run(self, run_id: str) -> ReconcileResult:
        self._local.job = self._jobs[run_id]
        return spark_launcher.run(self.request(run_id))

    def request(self, run_id: str) -> ReconcileRequest:
        orders = ServiceDatabase(name="orders", url="postgresql+psycopg://ann:x@127.0.0.1/orders")
        return ReconcileRequest(services=(orders,), folder=self.folder, run_id=run_id)


def found(run_id: str, verdict: Verdict) -> Findings:
    pair = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
    return Findings(
        run_id=run_id,
        started_at=datetime.now(UTC),
        seconds=1,
        margin=timedelta(0),
        bounds=(),
        counts=(Count(pair=pair, verdict=verdict, rows=5),),
        first_rows=(),
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(tmp_path)
    monkeypatch.setattr(spark_launcher, "_require_spark", lambda: None)
    monkeypatch.setattr(spark_launcher, "command", runs.command)
    return runs


def test_second_run_in_a_folder_is_refused(runs: Runs):
    """The first run is unaffected."""
    runs.plan("r1", Verdict.MISSING_DOWNSTREAM, status=RunOutcome.MISMATCHES, waits=True)
    runs.plan("r2")
    results: list[ReconcileResult] = []
    first = threading.Thread(target=lambda: results.append(runs.run("r1")))
    first.start()
    log = OutputFolder(path=runs.folder).log
    wait(lambda: log.exists() and "is written" in log.read_text(), "the first one writes")
    try:
        with pytest.raises(ConfigurationError, match="in use by run r1 of orders") as refused:
            runs.run("r2")
    finally:
        runs.go.touch()
        first.join(30)

    assert f"process {os.getpid()} on " in str(refused.value)
    assert "folder of its own with --out" in str(refused.value)
    (result,) = results
    assert (result.outcome, result.problem) == (RunOutcome.MISMATCHES, "")
    assert result.findings is not None
    assert result.findings.run_id == "r1"


def test_findings_of_another_run_are_an_error(runs: Runs):
    runs.plan("r1", found_by="r2")

    result = runs.run("r1")

    assert (result.outcome, result.findings) == (RunOutcome.ERROR, None)
    assert "ended as run r1 with CLEAN" in result.problem
    assert "holds the findings of run r2 with CLEAN" in result.problem
    assert "reconcile once more" in result.problem


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict.MATCHED, RunOutcome.MISMATCHES),
        (Verdict.MISSING_DOWNSTREAM, RunOutcome.CLEAN),
        (Verdict.MATCHED, RunOutcome.NOT_JUDGED),
    ],
)
def test_findings_that_contradict_the_exit_status_are_an_error(
    runs: Runs, verdict: Verdict, status: RunOutcome
):
    runs.plan("r1", verdict, status=status)

    result = runs.run("r1")

    assert (result.outcome, result.findings) == (RunOutcome.ERROR, None)
    assert f"ended as run r1 with {status.name}" in result.problem


def test_folder_can_be_reused_while_a_process_still_exits(runs: Runs):
    """Java may live for a moment after the job; it has the log open."""
    runs.plan("r1", lingering=True)
    runs.plan("r2")

    assert runs.run("r1").outcome is RunOutcome.CLEAN
    assert runs.run("r2").outcome is RunOutcome.CLEAN


@pytest.fixture
def holder(runs: Runs) -> Iterator[subprocess.Popen[str]]:
    """Another process that has locked the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(spark_launcher.to_json(runs.request("r1")).decode() + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "locked\n"
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate()


def test_killed_process_releases_the_folder(runs: Runs, holder: subprocess.Popen[str]):
    runs.plan("r2")
    with pytest.raises(ConfigurationError, match=f"in use by run r1 .*process {holder.pid} on"):
        runs.run("r2")

    holder.send_signal(signal.SIGKILL)
    holder.wait(30)

    assert runs.run("r2").outcome is RunOutcome.CLEAN


def test_without_locks_a_run_checks_the_findings(runs: Runs, monkeypatch: pytest.MonkeyPatch):
    runs.plan("r1")

    class Locks:
        LOCK_EX = LOCK_NB = LOCK_UN = 0

        @staticmethod
        def flock(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

    for locks in (Locks, None):
        monkeypatch.setattr(report_folder, "_fcntl", locks)
        assert runs.run("r1").outcome is RunOutcome.CLEAN


def test_log_begins_with_the_run_and_follows_no_link(runs: Runs, tmp_path: Path):
    runs.plan("r1")
    runs.run("r1")
    runs.run("r1")
    log = OutputFolder(path=runs.folder).log
    first, *rest = log.read_text().splitlines()
    assert first.startswith("run r1 of orders (process ")
    assert rest == ["is written"]

    precious = tmp_path / "precious"
    precious.write_text("three years of work")
    log.unlink()
    log.symlink_to(precious)
    with pytest.raises(ConfigurationError, match="cannot take the report"):
        runs.run("r1")
    assert precious.read_text() == "three years of work"


def test_files_of_an_earlier_run_are_removed_before_the_job(runs: Runs):
    folder = OutputFolder(path=runs.folder)
    for directory in (folder.rows, folder.summary):
        directory.mkdir(parents=True)
        (directory / "part-0.parquet").touch()
    for file in (folder.findings, folder.page, folder.log):
        file.write_text("of an earlier run")

    with locked(folder, runs.request("r1")):
        assert list(runs.folder.iterdir()) == [folder.log]
        assert "earlier" not in folder.log.read_text()


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path):
    parent = tmp_path / "nights"
    folders = {new_folder(parent) for _ in range(5)}
    assert folders == set(parent.iterdir())
    assert len(folders) == 5


def test_impossible_folder_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for parent in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ConfigurationError, match="cannot take the report"):
            new_folder(parent)
