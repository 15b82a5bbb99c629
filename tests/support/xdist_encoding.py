"""Makes test reports safe to send: pytest-xdist sends them between processes, and a test may log
text that no encoding accepts.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    r"""Write lone surrogates as escapes, such as `\udc00`."""
    report = yield
    report.sections = [(title, _encodable(content)) for title, content in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = _encodable(report.longrepr)
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
