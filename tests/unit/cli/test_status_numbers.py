"""Counts as `shieldtx status` shows them."""

from __future__ import annotations

import pytest

from shieldtx.cli import status
from shieldtx.store.status import Count, Precision


@pytest.mark.parametrize(
    ("rows", "precision", "shown"),
    [
        (0, Precision.EXACT, "0"),
        (1234, Precision.EXACT, "1,234"),
        (20_000, Precision.ESTIMATED, "~20,000"),
        (10_000, Precision.AT_LEAST, "10,000+"),
        (0, Precision.AT_LEAST, "?"),
    ],
)
def test_number_shows_its_precision(rows: int, precision: Precision, shown: str):
    assert status._number(Count(rows=rows, precision=precision)) == shown
