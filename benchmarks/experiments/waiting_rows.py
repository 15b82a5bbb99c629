"""A relay next to many rows that wait for their time: in retry back-off, or delayed by choice."""

from __future__ import annotations

from typing import Final

from benchmarks.data.fill_outbox import fill_waiting
from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.samples import losses

FIGURES: Final = ("delayed_rows_cost",)
BACKLOG: Final = 20_000


def run(bench: Bench) -> ExperimentResult:
    """Measure with and without the waiting rows, alternating."""
    rows = bench.sizes.delayed_rows
    with (
        bench.servers.place() as plain,
        bench.servers.place() as crowded,
        SteadyBacklog(bench, plain, backlog=BACKLOG) as without,
        SteadyBacklog(bench, crowded, backlog=BACKLOG) as beside,
    ):
        bench.say(f"waiting rows: writing {rows:,} of them")
        with crowded.connect() as connection:
            fill_waiting(connection, rows)
        for place in (plain, crowded):
            place.tidy()
        runs = bench.by_turns(
            "waiting rows",
            {
                "relay_without_waiting_rows": lambda: without.measure(bench.sizes.window),
                "relay_beside_waiting_rows": lambda: beside.measure(bench.sizes.window),
            },
        )
    lost = losses(runs["relay_beside_waiting_rows"], runs["relay_without_waiting_rows"])
    return ExperimentResult(figures={"delayed_rows_cost": lost}, absolutes=rates(runs))
