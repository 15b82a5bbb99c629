"""A browser for all tests of a module, where Chromium is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import MISSING, Chromium, installed


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A Chromium; where none is installed, the tests are skipped, which CI does not allow."""
    if installed() is None:
        pytest.skip(MISSING)
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser
