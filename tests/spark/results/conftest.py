"""Fixtures for the results of a run, on a few rows each."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _few_rows(interpreted: None) -> None:
    """Use the session as `interpreted` sets it up."""
