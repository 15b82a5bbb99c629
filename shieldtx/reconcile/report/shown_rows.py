"""The rows that fit into a report: a browser cannot open a page of any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from shieldtx.reconcile import findings
from shieldtx.reconcile.findings import FoundRow, Pair
from shieldtx.reconcile.report import html
from shieldtx.reconcile.verdicts import Verdict

ROWS_BYTES: Final = 4_000_000
"""The limit for rows on the page, and for rows in `summary.json`. The rest of a page is far below a
megabyte for a dozen pairs of services."""


def shown_rows(rows: Sequence[FoundRow], *, room: int = ROWS_BYTES) -> tuple[FoundRow, ...]:
    """Return as many of the rows as there is room for, in their order.

    The first rows of all mismatches of all pairs take precedence over second rows.
    """
    seen: Counter[tuple[Pair, Verdict]] = Counter()
    turns: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        turns.append((seen[row.pair, row.verdict], number))
        seen[row.pair, row.verdict] += 1
    shown: list[int] = []
    of_page = of_findings = 0
    tables: set[tuple[Pair, Verdict, str, str]] = set()
    for _, number in sorted(turns):
        row = rows[number]
        table = (row.pair, row.verdict, row.topic, row.event_type)
        of_page += html.bytes_of(row, is_first=table not in tables)
        of_findings += findings.bytes_of(row)
        tables.add(table)
        if max(of_page, of_findings) > room:
            break
        shown.append(number)
    return tuple(rows[number] for number in sorted(shown))
