"""Jobs that run by a crontab line, in a separate process, since signals are per process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.cron import run_by, run_by_crontab
from shieldtx.scheduling.exit_status import EXIT_STOPPED

PROGRAM = """
import sys, time
from apscheduler.triggers.interval import IntervalTrigger
from shieldtx.scheduling.cron import run_by

def run():
    {body}

print("ready", flush=True)
sys.exit(run_by(IntervalTrigger(seconds={every}), run, configuration="nightly"))
"""


INTERRUPTED = """try:
        print('runs', flush=True)
        time.sleep(60)
    finally:
        print('cleaned up', flush=True)"""


@contextmanager
def started(body: str, *, every: float = 0.1) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, every=every)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_job_runs_again_after_an_error() -> None:
    with started("print('ran', flush=True); raise OSError('no disk')") as process:
        assert [process.stdout.readline() for _ in range(3)] == ["ran\n"] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == EXIT_STOPPED
        assert "no disk" in process.stderr.read()


def test_failed_and_interrupted_runs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def run() -> None:
        if caplog.records:
            signal.raise_signal(signal.SIGTERM)
        raise OSError("no disk")

    run_by(IntervalTrigger(seconds=0.1), run, configuration="nightly")

    found = [vars(record) for record in caplog.records]
    assert [(each["action"], each["levelname"], each["configuration"]) for each in found] == [
        ("scheduled_run_failed", "ERROR", "nightly"),
        ("scheduled_run_interrupted", "ERROR", "nightly"),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_interrupts_a_run_and_lets_it_clean_up(number: signal.Signals) -> None:
    with started(INTERRUPTED) as process:
        assert process.stdout.readline() == "runs\n"
        process.send_signal(number)
        assert process.stdout.readline() == "cleaned up\n"
        assert process.wait(20) == EXIT_STOPPED


def test_signal_between_two_runs_ends_the_process() -> None:
    with started("pass", every=3600) as process:
        process.send_signal(signal.SIGTERM)
        # Before the scheduler handles signals, a signal ends the process by itself.
        assert process.wait(20) in {EXIT_STOPPED, -signal.SIGTERM}


def test_signal_during_the_start_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: BackgroundScheduler) -> None:
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(BackgroundScheduler, "start", start)
    assert (
        run_by(IntervalTrigger(seconds=60), lambda: None, configuration="nightly") == EXIT_STOPPED
    )


def test_signal_before_the_scheduler_thread_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def start_late(self: threading.Thread) -> None:
        signal.raise_signal(signal.SIGTERM)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    assert (
        run_by(IntervalTrigger(seconds=60), lambda: None, configuration="nightly") == EXIT_STOPPED
    )


@pytest.mark.parametrize("line", ["", "at two", "0 2 * *", "0 25 * * *", "61 2 * * *"])
def test_invalid_crontab_line_is_refused(line: str) -> None:
    with pytest.raises(ConfigurationError, match="every night at two"):
        run_by_crontab(line, lambda: None, configuration="nightly")
