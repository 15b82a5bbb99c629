"""The final output of the demo: the audit, and the paths of its files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.retail.audit import Audit


def print_audit(console: Console, audit: Audit, title: str) -> None:
    """Print the outcomes of the orders, and whether money and goods are complete."""
    books = audit.books
    table = Table(title=title, title_justify="left", min_width=60)
    table.add_column("counted without shieldtx")
    table.add_column("", justify="right")
    table.add_column("must be", justify="right")
    table.add_row("placed", f"{len(books.placed):,}")
    table.add_row("records on the topic", f"{len(books.records):,}")
    table.add_row("duplicate records", f"{audit.duplicates:,}", "any number")
    table.add_row("effects (reservations)", f"{len(books.effects):,}")
    table.add_row("compensations (refunds)", f"{len(books.compensations):,}")
    table.add_row("parked", f"{len(books.parked):,}")
    table.add_section()
    for name, count in {
        "lost": audit.lost,
        "double": audit.double,
        "order inversions": audit.inversions,
        "never placed": audit.ghosts,
    }.items():
        table.add_row(name, _zero(count), "0")
    table.add_section()
    table.add_row("money charged", _money(books.charged_cents))
    table.add_row("money refunded", _money(books.refunded_cents))
    table.add_row(
        "charged - refunded = standing orders",
        _money(books.charged_cents - books.refunded_cents),
        _money(books.standing_cents),
    )
    table.add_row("accounts that do not balance", _zero(books.unbalanced_accounts), "0")
    table.add_section()
    table.add_row("stock delivered", f"{books.delivered:,}")
    table.add_row("stock reserved", f"{books.reserved:,}")
    table.add_row(
        "delivered - reserved = remaining",
        f"{books.delivered - books.reserved:,}",
        f"{books.on_hand:,}",
    )
    table.add_row("products that do not balance", _zero(books.unbalanced_products), "0")
    console.print(table)


def print_paths(console: Console, paths: Mapping[str, Path]) -> None:
    """Print paths, each on a separate line that can be copied."""
    for what, path in paths.items():
        console.print(f"{what}: {path}", soft_wrap=True, highlight=False)


def print_reports(console: Console, folder: Path) -> None:
    """Print, for each report of the reconciliation, the command that opens it in a browser."""
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    for path in sorted(folder.glob("*/report.html"), key=lambda path: path.stat().st_mtime):
        what = f"to read the report of the run {path.parent.name!r}"
        console.print(f"{what}: {opener} {shlex.quote(str(path))}", soft_wrap=True, highlight=False)


def _zero(count: int) -> str:
    return f"[green]{count:,}[/]" if count == 0 else f"[bold red]{count:,}[/]"


def _money(cents: int) -> str:
    return f"$ {cents / 100:,.2f}"
