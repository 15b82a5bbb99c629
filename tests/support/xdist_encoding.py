"""Reports that travel: what a test logged may hold what no encoding takes, and pytest-xdist sends
reports from process to process.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write lone surrogates out, as `\\udc00`."""
    report = yield
    report.sections = [(title, _encodable(content)) for title, content in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = _encodable(report.longrepr)
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
