"""In CI a skipped test fails, with the reason why it was skipped; one that came too late may."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TypeVar

import pytest

from tests.support.stages import TOO_LATE

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test that skips itself fail in CI."""
    return _judged((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a module that skips itself fail in CI."""
    return _judged((yield))


def _judged(report: Report) -> Report:
    is_expected_failure = hasattr(report, "wasxfail")
    if os.environ.get("CI") == "true" and report.skipped and not is_expected_failure:
        path, line, reason = report.longrepr
        if TOO_LATE in reason:
            return report
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: left out, which CI does not allow. {reason}"
    return report
