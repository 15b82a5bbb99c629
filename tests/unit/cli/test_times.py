"""Times of options: a text that could mean another time is an error."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from shieldtx.cli.program import program
from shieldtx.cli.times import time_of


@pytest.mark.parametrize("text", ["2026-01-31T08:00:00Z", "2026-01-31 09:00+01:00", "20260131T08Z"])
def test_time_with_its_zone_is_accepted(text: str):
    assert time_of("--since", text) == datetime(2026, 1, 31, 8, tzinfo=UTC)


# Seconds since 1970 in other programs.
@pytest.mark.parametrize("text", ["5", "2026", "20260131", "1767225600", "2026-01-31", "noon", ""])
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_number_or_bare_date_is_not_a_time(option: str, text: str):
    result = CliRunner().invoke(program, ["reconcile", option, text])
    assert result.exit_code == 3
    assert result.stderr.startswith(f"error: {option}: '{text}' ")
    assert "write it as 2031-05-01T08:00:00+02:00" in result.stderr
