"""Draws the plots from the files of a run; runs in the peers' environment, which has matplotlib."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

_BACKLOG = re.compile(r"backlog_of_(\d+)_events_per_s")


def main(folder: Path) -> None:
    """Draw the plots of the available figures."""
    figures = json.loads((folder / "bench.json").read_text())
    distributions = json.loads((folder / "bench-distributions.json").read_text())
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    backlog(figures, folder / "bench-backlog.png")
    latency(distributions, folder / "bench-latency.png")


def backlog(figures: dict[str, Any], path: Path) -> None:
    """Draw throughput against the size of the backlog."""
    sizes = {int(m[1]): value for name, value in figures.items() if (m := _BACKLOG.fullmatch(name))}
    if not sizes:
        return
    rows = sorted(sizes)
    medians = [sizes[n] for n in rows]
    lowest = [figures.get(f"backlog_of_{n}_events_per_s_lowest", sizes[n]) for n in rows]
    highest = [figures.get(f"backlog_of_{n}_events_per_s_highest", sizes[n]) for n in rows]
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.fill_between(rows, lowest, highest, alpha=0.2, linewidth=0)
    axes.plot(rows, medians, marker="o")
    axes.set(xscale="log", xlabel="rows in the backlog", ylabel="events per second")
    axes.set_xticks(rows, [f"{n:,}" for n in rows])
    axes.set_xticks([], minor=True)
    axes.set_ylim(0, max(highest) * 1.15)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=150)


def latency(distributions: dict[str, list[float]], path: Path) -> None:
    """Draw the part of the events that took at most a number of milliseconds."""
    if not distributions:
        return
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, values in distributions.items():
        ordered = sorted(values)
        parts = [(place + 1) / len(ordered) for place in range(len(ordered))]
        axes.plot(ordered, parts, label=name)
    axes.set(xscale="log", xlabel="milliseconds", ylabel="part of the events")
    axes.axhline(0.99, linewidth=0.8, linestyle=":", color="grey")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
