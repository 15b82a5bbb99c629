"""The table of figures, and the files with them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.harness.context import ExperimentResult
from benchmarks.harness.samples import Measured
from benchmarks.targets.figures import FIGURES, Figure

_COSTS: Final = ("CPU µs/event", "servers' CPU", "WAL B/event")
"""Costs of the measured process, of PostgreSQL and Kafka together, of the database's log."""


@dataclass(kw_only=True, slots=True)
class Report:
    """The results of all experiments."""

    fdatasync_us: float
    postgres: str
    figures: dict[str, Measured] = field(default_factory=dict)
    absolutes: dict[str, Measured] = field(default_factory=dict)
    distributions: dict[str, Sequence[float]] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)

    def add(self, result: ExperimentResult) -> None:
        """Add the results of an experiment."""
        self.figures.update(result.figures)
        self.absolutes.update(result.absolutes)
        self.distributions.update(result.distributions)
        self.remarks.update(result.remarks)

    def flat(self) -> dict[str, float | str]:
        """Return all results by name: the median as the name itself, the rest with suffixes."""
        found: dict[str, float | str] = {
            "machine_cores": os.cpu_count() or 0,
            "machine_fdatasync_us": round(self.fdatasync_us, 1),
            "python": platform.python_version(),
            "postgresql": self.postgres,
        }
        for name, value in (self.figures | self.absolutes).items():
            found[name] = _rounded(value.median)
            if len(value.values) > 1:
                found[f"{name}_lowest"] = _rounded(value.lowest)
                found[f"{name}_highest"] = _rounded(value.highest)
            if value.cpu_us is not None:
                found[f"{name}_cpu_us_per_event"] = _rounded(value.cpu_us)
            if value.servers_cpu_us is not None:
                found[f"{name}_servers_cpu_us_per_event"] = _rounded(value.servers_cpu_us)
            if value.wal_per_event is not None:
                found[f"{name}_wal_bytes_per_event"] = _rounded(value.wal_per_event)
        return found

    def write(self, folder: Path) -> None:
        """Write `bench.json`, the table as `bench.md`, and the single values for the plots."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.json").write_text(json.dumps(self.flat(), indent=2) + "\n")
        (folder / "bench.md").write_text(self.markdown())
        (folder / "bench-distributions.json").write_text(json.dumps(self.distributions))

    def markdown(self) -> str:
        """Return the table of targets for a page of the docs."""
        lines = ["| figure | target | measured | spread |", "|---|---|---|---|"]
        for figure in FIGURES:
            value = self.figures.get(figure.name)
            if value is not None:
                title, target, median, spread = _row(figure, value)[:4]
                lines.append(f"| {title} | {target} | {median} | {spread} |")
        return "\n".join([*lines, "", self._machine(), ""])

    def show(self, console: Console, title: str) -> None:
        """Print both tables."""
        console.print(self._targets(title))
        console.print(self._absolutes())
        for name, remark in self.remarks.items():
            console.print(Text(f"{name.replace('_', ' ')}: {remark}"))
        console.print(self._machine())

    def _machine(self) -> str:
        return (
            f"{os.cpu_count()} cores, PostgreSQL {self.postgres}, Apache Kafka and everything else "
            f"on this machine; fdatasync of a page: {self.fdatasync_us:,.0f} µs"
        )

    def _targets(self, title: str) -> Table:
        table = Table(title=title)
        table.add_column("figure")
        for column in ("target", "median", "lowest to highest", "met", *_COSTS):
            table.add_column(column, justify="right")
        for figure in FIGURES:
            value = self.figures.get(figure.name)
            if value is not None:
                table.add_row(*_row(figure, value))
        return table

    def _absolutes(self) -> Table:
        table = Table(title="Absolute figures of this machine")
        table.add_column("what")
        for column in ("median", "lowest to highest", *_COSTS):
            table.add_column(column, justify="right")
        for name, value in self.absolutes.items():
            table.add_row(
                name.replace("_", " "),
                f"{value.median:,.0f}",
                _spread(value, "{:,.0f}"),
                *_costs(value),
            )
        return table


def _row(figure: Figure, value: Measured) -> tuple[str, ...]:
    return (
        figure.title,
        f"{figure.direction.value} {figure.shown(figure.target)}",
        figure.shown(value.median),
        _spread(value, f"{{:,.{figure.digits}f}}"),
        "[green]yes[/]" if figure.is_met_by(value.median) else "[red]no[/]",
        *_costs(value),
    )


def _spread(value: Measured, form: str) -> str:
    if len(value.values) == 1:
        return "one run"
    return f"{form.format(value.lowest)} to {form.format(value.highest)}"


def _costs(value: Measured) -> list[str]:
    costs = (value.cpu_us, value.servers_cpu_us, value.wal_per_event)
    return ["" if cost is None else f"{cost:,.0f}" for cost in costs]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
