"""The console output of the fault matrix."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tests.verification.faults.matrix import Row
from tests.verification.faults.mutant_runs import MutantRunResult

COLUMNS = {
    "attempted": "tried",
    "ok": "ok",
    "info": "info",
    "fail": "fail",
    "committed": "commit",
    "records": "rec",
    "duplicate_records": "dup",
    "effects": "eff",
    "compensations": "comp",
    "parked": "park",
    "lost": "lost",
    "ghost": "ghost",
    "double": "dbl",
    "inversions": "inv",
    "both": "both",
    "neither": "neith",
    "illegal": "illeg",
    "money": "money",
}


def line_of(row: Row) -> Text:
    """Return the line of a fault, with all its problems below."""
    verdict = Text("passed", style="green") if row.passed else Text("FAILED", style="bold red")
    line = Text.assemble(
        f"{row.fault.id:>4}  ",
        verdict,
        f"  {row.fault.name} ({row.seconds:.1f} s, drained in {row.drain_s:.1f} s)",
    )
    if row.reconciled is not None:
        line.append(f"\n      {row.reconciled}")
    for problem in row.problems:
        line.append(f"\n      {problem}", style="red")
    return line


def table_of(rows: Sequence[Row]) -> Table:
    """Return the table of all counts, a row for each fault."""
    table = Table("id", *COLUMNS.values(), "drain s", "seed", "")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        counted = ["" if row.counts is None else str(getattr(row.counts, name)) for name in COLUMNS]
        table.add_row(
            row.fault.id,
            *counted,
            f"{row.drain_s:.1f}",
            str(row.seed),
            "ok" if row.passed else "FAILED",
            style=None if row.passed else "red",
        )
    return table


def line_of_mutant(result: MutantRunResult) -> Text:
    """Return the line of a mutant: whether it was caught, and by which invariant."""
    verdict = Text("caught", style="green") if result.caught else Text("ALIVE", style="bold red")
    tries = f", try {result.tries}" if result.tries > 1 else ""
    line = Text.assemble(
        f"{result.mutant.id:>4}  ",
        verdict,
        f"  {result.mutant.defect}, by {result.invariant} ({result.row.seconds:.1f} s{tries})",
    )
    if not result.caught:
        for problem in result.row.problems:
            line.append(f"\n      {problem}", style="red")
    return line
