"""What ends a command or a worker: a record where the log is JSON, else a line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from shieldtx.cli.program import program

CRASHING = """
import threading
import warnings

from shieldtx.cli.logging import LogFormat, LogLevel, log_crashes, set_up

set_up(LogLevel.INFO, LogFormat.JSON)
log_crashes()
warnings.warn("old name")


def crash():
    raise LookupError("no shelf")


thread = threading.Thread(target=crash, name="shelves")
thread.start()
thread.join()
raise ZeroDivisionError("no pieces")
"""


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def run(*words: str) -> Any:
    return CliRunner().invoke(program, words, env={"SHIELDTX_SOURCE": None})


@pytest.mark.parametrize("command", [["status"], ["--app", "no:such", "relay"]], ids=str)
def test_failed_command_is_a_record_with_json(command: list[str]):
    result = run("--log-format", "json", *command)
    (entry,) = records(result.stderr)
    assert (entry["level"], entry["action"]) == ("error", "command_failed")
    assert entry["exit_status"] == result.exit_code == 2
    assert "SHIELDTX_SOURCE" in entry["error"] or "no" in entry["error"]


def test_failed_reconciliation_is_a_record_with_json():
    result = run("--log-format", "json", "reconcile")
    (entry,) = records(result.stderr)
    assert entry["exit_status"] == result.exit_code == 3
    assert "--config" in entry["error"]


def test_failed_command_is_a_line_with_plain():
    assert run("status").stderr.startswith("error: ")


def test_warnings_and_crashes_of_a_worker_are_records():
    done = subprocess.run(
        [sys.executable, "-c", CRASHING], capture_output=True, text=True, check=False, timeout=60
    )
    warning, thread, process = records(done.stderr)
    assert done.returncode == 1
    assert "old name" in warning["message"]
    assert (thread["action"], thread["thread_name"]) == ("thread_crashed", "shelves")
    assert "LookupError: no shelf" in thread["traceback"]
    assert (process["action"], process["level"]) == ("process_crashed", "critical")
    assert "ZeroDivisionError: no pieces" in process["traceback"]
