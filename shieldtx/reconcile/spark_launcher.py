"""Starts the Spark job in a separate process and returns its findings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from shieldtx._resources import PACKAGE, resource_folder
from shieldtx.errors import ConfigurationError
from shieldtx.reconcile.expectations import ExpectedGroup
from shieldtx.reconcile.findings import Findings, OutputFolder, RunOutcome, from_json
from shieldtx.reconcile.jdbc import jdbc_address
from shieldtx.reconcile.report_folder import locked
from shieldtx.reconcile.request import ReconcileRequest, ServiceDatabase, to_json

__all__ = ["ExpectedGroup", "ReconcileRequest", "ReconcileResult", "ServiceDatabase", "run"]

PROGRESS = "shieldtx: "
"""The prefix of progress messages in the log of the job."""
_TAIL_LINES = 15
_STOP_S = 10.0
_ASK_S = 1.0
_ENDED_WELL = {RunOutcome.CLEAN, RunOutcome.MISMATCHES, RunOutcome.NOT_JUDGED}
_INSTALL = "pip install 'shieldtx[spark]'"
_JAVA = "the reconciliation runs on Spark, which needs Java 17 or newer"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileResult:
    """The outcome of a run, its findings, and its folder."""

    outcome: RunOutcome
    findings: Findings | None
    """None if the run failed."""
    problem: str
    """Why the run failed, with the end of Spark's log; empty otherwise."""
    folder: OutputFolder
    run_id: str = ""
    """The name of the stored run; empty if it is not stored."""


def run(
    request: ReconcileRequest,
    *,
    given_up: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda _: None,
) -> ReconcileResult:
    """Run the reconciliation; return a result also if the run fails.

    `report` receives progress messages. `given_up` is polled every second, and cancels the run when
    it returns True. Raises ConfigurationError if the run cannot start: no PySpark, no Java, an
    unusable URL or folder, a folder in use by another run. An exception in this function (also
    Ctrl-C) or the death of this process ends the Spark job.
    """
    _require_spark()
    for service in request.services:
        for url in (service.url, service.replica_url):
            if url is not None:
                jdbc_address(service.name, url)
    folder = OutputFolder(path=request.folder.expanduser().resolve())
    with locked(folder, request) as log:
        status = _run_job(replace(request, folder=folder.path), log, given_up, report)
        return _result(request, folder, status)


def command(master: str = "local") -> tuple[list[str], dict[str, str]]:
    """Return the job's command line, and its additional environment variables.

    The folder of the job is inside this package or next to it. -P excludes a folder `spark` in the
    working directory from the import path. On a cluster, PYSPARK_PYTHON has the path of Python on
    the workers, which must reach this machine by its address.
    """
    folder = resource_folder("spark")
    inside = folder.parent == PACKAGE
    environment = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    if master.startswith("local"):
        # Otherwise Spark starts the system's Python, without the packages of this one, and uses any
        # address to which the machine's name resolves.
        environment["PYSPARK_PYTHON"] = sys.executable
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        environment["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if not inside:
        paths = [str(folder.parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    module = "shieldtx.spark" if inside else "spark"
    return [sys.executable, "-P", "-m", module, "--until-stdin-closes"], environment


def _require_spark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigurationError(
            f"the reconciliation runs on Spark, and PySpark is not installed: {_INSTALL}"
        )
    home = os.environ.get("JAVA_HOME")
    if home and not Path(home, "bin", "java").is_file():
        raise ConfigurationError(f"{_JAVA}, but JAVA_HOME is {home}, which has no bin/java")
    if not home and shutil.which("java") is None:
        raise ConfigurationError(f"{_JAVA}: install it, or set JAVA_HOME")


def _result(request: ReconcileRequest, folder: OutputFolder, status: int) -> ReconcileResult:
    """Return the result of the job; findings of another run are rejected."""
    if status not in _ENDED_WELL or not folder.findings.exists():
        return _broken_off(request, folder, _problem(folder.log, status))
    findings = from_json(folder.findings.read_bytes())
    if findings.run_id != request.run_id or findings.outcome != status:
        problem = _mixed_up(findings, request, folder, RunOutcome(status))
        return _broken_off(request, folder, problem)
    return ReconcileResult(
        outcome=findings.outcome,
        findings=findings,
        problem="",
        folder=folder,
        run_id=request.run_id,
    )


def _broken_off(request: ReconcileRequest, folder: OutputFolder, problem: str) -> ReconcileResult:
    return ReconcileResult(
        outcome=RunOutcome.ERROR,
        findings=None,
        problem=problem,
        folder=folder,
        run_id=request.run_id,
    )


def _mixed_up(
    findings: Findings, request: ReconcileRequest, folder: OutputFolder, outcome: RunOutcome
) -> str:
    return (
        f"Spark's job ended as {_named(request.run_id)} with {outcome.name}, and "
        f"{folder.findings} holds the findings of {_named(findings.run_id)} with "
        f"{findings.outcome.name}: another run has written to this folder at the same time. Give "
        "each run a folder of its own with --out, and reconcile once more"
    )


def _named(run_id: str) -> str:
    return f"run {run_id}" if run_id else "a run that is not stored"


def _run_job(
    request: ReconcileRequest,
    log: BinaryIO,
    given_up: Callable[[], bool],
    report: Callable[[str], None],
) -> int:
    """Run the job and return its exit status; the request is sent through its standard input."""
    arguments, environment = command(request.master)
    with subprocess.Popen(  # noqa: S603  our own module in our own interpreter, no shell
        arguments,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        # Only this process receives Ctrl-C, and then ends the job.
        start_new_session=True,
    ) as job:
        try:
            _send(job, request)
            while not given_up():
                _report_progress(OutputFolder(path=request.folder).log, report)
                with suppress(subprocess.TimeoutExpired):
                    return job.wait(_ASK_S)
            return RunOutcome.ERROR
        finally:
            _end(job)


def _report_progress(log: Path, report: Callable[[str], None]) -> None:
    """Pass the latest progress message of the job to `report`."""
    text = log.read_text(encoding="utf-8", errors="replace")
    messages = [line for line in text.splitlines() if line.startswith(PROGRESS)]
    report(messages[-1].removeprefix(PROGRESS) if messages else "Spark starts")


def _send(job: subprocess.Popen[bytes], request: ReconcileRequest) -> None:
    """Send the request and leave the pipe open: the job ends when the pipe closes."""
    assert job.stdin is not None  # noqa: S101  Popen opens the pipe on request
    try:
        job.stdin.write(to_json(request) + b"\n")
        job.stdin.flush()
    except BrokenPipeError:
        # The job has ended already; its log has the reason.
        return


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            job.kill()


def _problem(log: Path, status: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "UnsupportedClassVersionError" in text:
        return f"{_JAVA}, but the one that was found is older"
    tail = "\n".join(f"  {line}" for line in text.splitlines()[-_TAIL_LINES:])
    return f"Spark's job ended with status {status}. The end of {log}:\n{tail}"
