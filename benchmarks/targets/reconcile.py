"""The figures of the reconciliation, with their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.targets.figures import Direction, Figure


def _figure(name: str, title: str, target: float, direction: Direction, unit: str = "") -> Figure:
    return Figure(name=name, title=title, target=target, direction=direction, unit=unit)


_LEAST, _MOST = Direction.AT_LEAST, Direction.AT_MOST
TARGETS: Final = (
    _figure(
        "speedup_vs_jdbc_join", "speed, against a plain Spark JDBC join", 5.0, _LEAST, " times"
    ),
    _figure("precision", "reported mismatches that are real", 1.0, _LEAST),
    _figure("recall", "planted discrepancies that are reported", 1.0, _LEAST),
    _figure("linearity", "cost of a row, against a run with a tenth of the rows", 1.2, _MOST),
    _figure("incremental_seconds", "a further night over the old rows", 30.0, _MOST, " s"),
    _figure("driver_rss_mb", "memory of the job, Java and Python", 2048.0, _MOST, " MB"),
)


def show(console: Console, figures: Mapping[str, float | str]) -> None:
    """Print the figures with their targets."""
    table = Table(title=f"The reconciliation of {figures['rows']:,} events on each side")
    for column in ("figure", "target", "measured", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure in TARGETS:
        value = float(figures[figure.name])
        met = "[green]yes[/]" if figure.is_met_by(value) else "[red]no[/]"
        target = f"{figure.direction.value} {figure.shown(figure.target)}"
        table.add_row(figure.title, target, figure.shown(value), met)
    console.print(table)
    console.print(
        f"{float(figures['seconds']):.1f} s against {float(figures['join_seconds']):.1f} s, "
        f"without Spark's start; {figures['machine_cores']} cores, "
        f"{float(figures['gigabytes']):.1f} GB; "
        f"a bare scan of both tables takes {float(figures['bare_scan_seconds']):.1f} s"
    )
    console.print(
        f"With Spark's start {float(figures['seconds_with_start']):.1f} against "
        f"{float(figures['join_seconds_with_start']):.1f} s; each further row is judged "
        f"{float(figures['speedup_of_further_rows']):.2f} times as fast as it is joined"
    )
