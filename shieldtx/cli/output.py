"""Results on standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON instead: its keys are stable.", show_default=False),
]

_PIPED_WIDTH = 200


def print_json(data: Any) -> None:
    """Print data as JSON, alone on standard output."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def print_line(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print a table; the columns of `right` are set flush right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        # Folded, not cut: what is copied from here must be whole. Numbers are not even folded.
        is_number = heading in right
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in rows:
        table.add_row(*(printable("" if cell is None else str(cell)) for cell in row))
    _console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values below each other; values are never wrapped."""
    named = [(name, "" if value is None else printable(str(value))) for name, value in fields]
    width = max((len(name) for name, _ in named), default=0)
    for name, value in named:
        sys.stdout.write(f"{name:<{width}}  {value}".rstrip() + "\n")


def printable(text: str) -> str:
    """Return foreign text without characters that a terminal would obey."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def age(duration: timedelta | None) -> str:
    """Return a duration in its two largest units."""
    if duration is None:
        return "-"
    seconds = int(duration.total_seconds())
    for size, unit, below, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // below} {smaller}"
    return f"{duration.total_seconds():.1f} s"


def moment(time: datetime | None) -> str | None:
    """Return a time by RFC 3339."""
    return None if time is None else time.isoformat()


def _console() -> Console:
    # What is printed is data: no markup, no emoji codes, no colours of its own.
    return Console(
        markup=False,
        emoji=False,
        highlight=False,
        width=None if sys.stdout.isatty() else _PIPED_WIDTH,
    )
