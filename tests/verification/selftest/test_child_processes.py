"""Tests of child processes: killed if they ignore a request, and ended with their parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from shieldtx.embedded import ServerFailed
from shieldtx.embedded.child_process import ChildProcess
from tests.support import child_process
from tests.support.project import ROOT

IGNORE_TERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""
PARENT = """
import signal, sys
from pathlib import Path
from shieldtx.embedded.child_process import ChildProcess
child = ChildProcess.start(["sleep", "600"], name="sleeper", log=Path(sys.argv[1]))
print(child.pid, flush=True)
signal.pause()
"""
PARENT_WITH_PIPE = """
import signal, subprocess
from tests.support import child_process
child = child_process.start(["sleep", "600"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
signal.pause()
"""


def python(script: str, log: Path, name: str = "child") -> ChildProcess:
    return ChildProcess.start([sys.executable, "-c", script], name=name, log=log)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = python(IGNORE_TERM, tmp_path / "log")
    child.await_ready(lambda: child.log_tail() == "deaf", within=20)
    child.stop(patience=0.2)
    assert child.exit_status == -signal.SIGKILL
    assert not child.is_running


def test_a_process_that_heeds_sigterm_is_not_killed(tmp_path: Path) -> None:
    child = ChildProcess.start(["sleep", "600"], name="sleeper", log=tmp_path / "log")
    child.stop()
    assert child.exit_status == -signal.SIGTERM
    child.stop()  # a second call has no effect


def test_a_suspended_process_is_ended_too(tmp_path: Path, eventually: Callable[..., None]) -> None:
    child = ChildProcess.start(["sleep", "600"], name="sleeper", log=tmp_path / "log")
    child.send_signal(signal.SIGSTOP)
    process = psutil.Process(child.pid)
    eventually(lambda: process.status() == psutil.STATUS_STOPPED, "the process is suspended")
    child.stop(patience=0.2)
    assert child.exit_status == -signal.SIGKILL


def test_a_process_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    born: list[ChildProcess] = []

    def start() -> None:
        born.append(ChildProcess.start(["sleep", "600"], name="sleeper", log=tmp_path / "log"))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert not born[0].wait(0.5), "the death signal is tied to a thread, which must not be this one"
    born[0].kill()


@pytest.mark.parametrize("program", [PARENT, PARENT_WITH_PIPE])
def test_a_process_dies_with_a_parent_that_is_killed(
    tmp_path: Path, eventually: Callable[..., None], program: str
) -> None:
    parent = child_process.start(
        [sys.executable, "-c", program, tmp_path / "log"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.communicate()
    eventually(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE,
        "the child of a killed parent is gone",
    )


def test_child_has_its_own_session_that_ctrl_c_does_not_reach(tmp_path: Path) -> None:
    child = python("import os; print(os.getsid(0) == os.getpid())", tmp_path / "log")
    child.finish(within=20)
    assert child.log_tail() == "True"


def test_an_early_end_is_reported_with_its_status_and_its_log(tmp_path: Path) -> None:
    child = python("print('no such luck'); raise SystemExit(3)", tmp_path / "log", "relay 1")
    with pytest.raises(
        ServerFailed, match=r"(?s)relay 1 ended with exit status 3 before.*\nno such luck"
    ):
        child.await_ready(lambda: False, within=20)


def test_a_process_that_never_gets_ready_is_reported_in_time(tmp_path: Path) -> None:
    child = ChildProcess.start(["sleep", "600"], name="sleeper", log=tmp_path / "log")
    with pytest.raises(ServerFailed, match=r"was not ready within 0 s.*\n\(it wrote nothing\)"):
        child.await_ready(lambda: False, within=0.1)
    child.kill()


def test_a_failing_command_does_not_finish_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="ended with exit status 1;"):
        python("raise SystemExit(1)", tmp_path / "log").finish(within=20)


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match=r"nothing cannot be started .*no-such-program"):
        ChildProcess.start(["no-such-program"], name="nothing", log=tmp_path / "log")
