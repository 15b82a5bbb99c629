"""The number of rows for which a report has room, by the sizes of real ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from shieldtx.reconcile.findings import PAYLOAD_LETTERS, FoundRow, OutputFolder
from shieldtx.reconcile.report import writer
from shieldtx.reconcile.report.shown_rows import ROWS_BYTES, shown_rows
from shieldtx.reconcile.request import MOST_ROWS
from shieldtx.reconcile.verdicts import Verdict
from tests.support.sample_findings import HOSTILE, PAIR, days, findings, given_up, missing

MOST_BYTES = 5_000_000
MISMATCHES = [verdict for verdict in Verdict if verdict.is_mismatch]
PAIRS = [replace(PAIR, downstream=f"stock-{number}") for number in range(2)]
WIDE = {"payload": "<" * PAYLOAD_LETTERS, "payload_letters": 1_000_000}


def rows_of(number: int, **columns) -> list[FoundRow]:
    """Make this many rows of each mismatch of each pair."""
    return [
        given_up(f"0199c2e4-7a11-7c3e-9d7f-{n:012x}", pair=pair, verdict=verdict, **columns)
        for pair in PAIRS
        for verdict in MISMATCHES
        for n in range(number)
    ]


@pytest.mark.parametrize("columns", [{}, WIDE, {"payload": "\x01" * PAYLOAD_LETTERS}])
def test_maximum_of_rows_of_every_mismatch_is_readable(columns, tmp_path: Path):
    rows = rows_of(MOST_ROWS, **columns)
    shown = shown_rows(rows)
    folder = OutputFolder(path=tmp_path)
    writer.write(
        findings(
            *((pair, verdict, MOST_ROWS) for pair in PAIRS for verdict in MISMATCHES),
            first_rows=shown,
            rows_without_room=len(rows) - len(shown),
            days=tuple(day for pair in PAIRS for day in days(pair, 31)),
        ),
        folder,
    )

    sizes = folder.page.stat().st_size, folder.findings.stat().st_size
    assert ROWS_BYTES * 0.9 < max(sizes) < MOST_BYTES
    note = f"has no room for {len(rows) - len(shown):,} more requested rows"
    assert note in folder.page.read_text(encoding="utf-8")
    numbers = Counter((row.pair, row.verdict) for row in shown)
    assert len(numbers) == len(PAIRS) * len(MISMATCHES)
    assert max(numbers.values()) - min(numbers.values()) <= 1


def test_rows_that_fit_are_shown_unchanged():
    rows = rows_of(3, topic=HOSTILE)
    assert shown_rows(rows) == tuple(rows)


def test_first_rows_are_shown():
    rows = [missing(str(number)) for number in range(9)]
    some = shown_rows(rows, room=5_000)
    assert 0 < len(some) < 9
    assert some == tuple(rows[: len(some)])
