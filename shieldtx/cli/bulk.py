"""Changes of many rows: what is going to happen, and the progress of the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

import typer

from shieldtx.cli import dead_letter_views
from shieldtx.cli.output import showing_progress
from shieldtx.logs.text import printable
from shieldtx.store.dead_letter_rows import DeadLetter, ParkedRecord

BATCH: Final = 50
"""Rows of one transaction; each parked record may have megabytes."""

_MOST_LINES: Final = 20
_LONGEST_REASON: Final = 120

Row = DeadLetter | ParkedRecord
R = TypeVar("R")
S = TypeVar("S")


def preview(rows: Sequence[Row], *, verb: str) -> None:
    """Report on standard error how many rows of which kind and reason are going to change."""
    counts = Counter(map(_described, rows))
    typer.echo(f"rows to {verb}: {len(rows):,}, the oldest first", err=True)
    for described, count in counts.most_common(_MOST_LINES):
        typer.echo(printable(f"{count:>8,}  {described}"), err=True)
    if len(counts) > _MOST_LINES:
        rest = counts.total() - sum(count for _, count in counts.most_common(_MOST_LINES))
        typer.echo(f"{rest:>8,}  others", err=True)


def in_batches(rows: Sequence[R], change: Callable[[Sequence[R]], Iterable[S]]) -> list[S]:
    """Change rows in batches, one transaction each, and show the progress on a terminal."""
    results: list[S] = []
    remaining = iter(rows)
    with showing_progress() as show:
        while batch := list(islice(remaining, BATCH)):
            results += change(batch)
            show(f"{len(results):,} of {len(rows):,}")
    return results


def _described(row: Row) -> str:
    summary = dead_letter_views.summary_of(row)
    where = "outbox" if summary["group"] is None else f"group {summary['group']}"
    what = " ".join(summary[name] for name in ("event_type", "kind") if summary[name] is not None)
    named = ", ".join(filter(None, (where, what or f"topic {summary['topic']}")))
    return f"{summary['status']}, {named}: {summary['reason'][:_LONGEST_REASON]}"
