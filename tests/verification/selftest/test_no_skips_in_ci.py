"""Tests that a test which a developer's machine may skip fails in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

SUITE = """
import pytest

def test_passes():
    assert True

def test_leaves_itself_out():
    pytest.skip("no chromium here")

@pytest.mark.skip(reason="no faketime here")
def test_is_left_out():
    raise AssertionError

@pytest.mark.xfail(reason="a known gap", strict=True)
def test_fails_as_expected():
    raise AssertionError
"""


def run_suite(folder: Path, suite: str, ci: str, *options: str) -> tuple[int, str]:
    (folder / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "-p",
            "tests.support.no_skips_in_ci",
            "-p",
            "no:cacheprovider",
            folder,
        ],
        cwd=ROOT,
        env=os.environ | {"CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.returncode, run.stdout


def test_a_test_that_is_left_out_fails_in_ci_with_its_reason(tmp_path: Path) -> None:
    status, said = run_suite(tmp_path, SUITE, ci="true")

    assert status == pytest.ExitCode.TESTS_FAILED
    assert "no chromium here" in said
    assert "no faketime here" in said
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in said


def test_a_module_that_is_left_out_fails_in_ci(tmp_path: Path) -> None:
    suite = "import pytest\npytest.importorskip('no_such_module')\n"

    status, said = run_suite(tmp_path, suite, ci="true")

    assert status == pytest.ExitCode.INTERRUPTED
    assert "no_such_module" in said


def test_elsewhere_a_test_may_be_left_out(tmp_path: Path) -> None:
    status, said = run_suite(tmp_path, SUITE, ci="")

    assert status == pytest.ExitCode.OK
    assert "2 skipped, 1 xfailed" in said


def test_a_test_that_comes_too_late_may_be_left_out(tmp_path: Path) -> None:
    suite = "def test_begins_late():\n    raise AssertionError\n"

    left_out = run_suite(tmp_path, suite, "true", "-p", "tests.support.stages", "--begin-until=1")
    begun = run_suite(tmp_path, suite, "true", "-p", "tests.support.stages", "--begin-until=9e9")

    assert left_out[0] == pytest.ExitCode.OK
    assert "1 skipped" in left_out[1]
    assert begun[0] == pytest.ExitCode.TESTS_FAILED
