"""Results on standard output: tables for a terminal, JSON for programs."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from shieldtx.errors import ShieldTxError
from shieldtx.logs.text import printable

log = logging.getLogger(__name__)

AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON with stable keys.", show_default=False),
]

_PIPED_WIDTH = 200


class ResultsLost(ShieldTxError):
    """Standard output is closed, or refuses what is written to it."""


def set_up() -> None:
    """Make standard output accept any text, with escapes for characters outside its encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def require() -> None:
    """Raise ResultsLost if standard output is closed, before a command changes anything."""
    if sys.stdout is None:
        raise ResultsLost("standard output is closed: send it to /dev/null to do without results")


def flush() -> None:
    """Flush what the application has printed; raises ResultsLost."""
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


def announce(text: str) -> None:
    """Print a line if standard output accepts one; a worker continues without."""
    if sys.stdout is None:
        return
    try:
        print_line(text)
    except BrokenPipeError:
        log.warning(
            "standard output lost, worker goes on",
            extra={"action": "output_lost", "error": "standard output is closed"},
        )
    except ResultsLost as error:
        log.warning(
            "standard output lost, worker goes on",
            extra={"action": "output_lost", "error": str(error)},
        )


def print_json(data: Any) -> None:
    """Print data as JSON, alone on standard output."""
    # JSON has its own escapes for characters outside the encoding.
    has_letters = (sys.stdout.encoding or "").lower().startswith("utf")
    _write(json.dumps(data, ensure_ascii=not has_letters, indent=2))


def print_line(text: str) -> None:
    """Print a line."""
    _write(printable(text))


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print a table; the columns of `right` are right-aligned."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        # Folded, not cut: copied text must be complete. Numbers are not folded either.
        is_number = heading in right
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in rows:
        table.add_row(*(printable("" if cell is None else str(cell)) for cell in row))
    print_made_table(table)


def print_made_table(table: Table | Tree) -> None:
    """Print a table or a tree whose text is already printable."""
    console = _console()
    # The capture flushes standard output too.
    with _writing(), console.capture() as capture:
        console.print(table)
    _write(capture.get().removesuffix("\n"))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line; values are never wrapped."""
    named = [(name, "" if value is None else printable(str(value))) for name, value in fields]
    width = max((len(name) for name, _ in named), default=0)
    for name, value in named:
        _write(f"{name:<{width}}  {value}".rstrip())


def print_progress(line: str) -> None:
    """Print a line of progress to standard error, apart from the results."""
    typer.echo(printable(line), err=True)


@contextmanager
def showing_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a step on a terminal, and does nothing for other outputs."""
    # Console.is_terminal is true for any file where FORCE_COLOR is set.
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    console = Console(stderr=True)
    with console.status("", spinner="dots") as status:
        yield lambda what: status.update(f"[dim]{escape(what)}[/]")


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


def _write(text: str) -> None:
    """Write a line at once: an output that is lost later could not change the exit status."""
    with _writing():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # the reader has closed the pipe
        _silence()
        raise
    except OSError as error:
        _silence()
        raise ResultsLost(f"standard output takes no results: {error.strerror}") from error


def _silence() -> None:
    """Discard all further output: Python flushes the rest at exit, which would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _console() -> Console:
    # The output is data: no markup, no emoji codes, no colours of its own.
    return Console(
        markup=False,
        emoji=False,
        highlight=False,
        width=None if sys.stdout.isatty() else _PIPED_WIDTH,
    )
