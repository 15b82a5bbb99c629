"""A relay beside many rows that wait for their time: in retry back-off, or delayed by choice."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Outcome, rates
from benchmarks.experiments.standing import Standing
from benchmarks.filling import fill_waiting
from benchmarks.measures import Run, losses

FIGURES: Final = ("delayed_rows_cost",)
BACKLOG: Final = 20_000


def run(bench: Bench) -> Outcome:
    """Measure with and without the waiting rows, by turns."""
    rows = bench.sizes.delayed_rows
    with (
        bench.servers.place() as plain,
        bench.servers.place() as crowded,
        Standing(bench, plain, backlog=BACKLOG) as without,
        Standing(bench, crowded, backlog=BACKLOG) as beside,
    ):
        bench.say(f"waiting rows: writing {rows:,} of them")
        with crowded.connect() as connection:
            fill_waiting(connection, rows)
        for place in (plain, crowded):
            place.tidy()
        runs: dict[str, list[Run]] = {"without": [], "beside": []}
        outboxes = {"without": without, "beside": beside}
        for number in range(bench.sizes.rounds):
            for name in sorted(outboxes, reverse=number % 2 == 0):
                bench.say(f"waiting rows, round {number + 1} of {bench.sizes.rounds}: {name}")
                runs[name].append(outboxes[name].measure(bench.sizes.window))
    return Outcome(
        figures={"delayed_rows_cost": losses(runs["beside"], runs["without"])},
        absolutes=rates("beside_delayed_rows", runs["beside"])
        | rates("without_delayed_rows", runs["without"]),
    )
