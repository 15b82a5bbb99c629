"""The rate of a relay by the size of its backlog."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Final

from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.samples import Run, measured

FIGURES: Final = ("backlog_flatness",)


def run(bench: Bench) -> ExperimentResult:
    """Measure with three sizes of the backlog, alternating."""
    with ExitStack() as open_:
        outboxes: dict[int, SteadyBacklog] = {}
        for size in bench.sizes.backlogs:
            bench.say(f"backlog: writing {size:,} rows")
            place = open_.enter_context(bench.servers.place())
            outboxes[size] = open_.enter_context(SteadyBacklog(bench, place, backlog=size))
            place.tidy()
        runs: dict[int, list[Run]] = {size: [] for size in outboxes}
        for number in range(bench.sizes.rounds):
            for size in sorted(outboxes, reverse=number % 2 == 1):
                bench.say(f"backlog, round {number + 1} of {bench.sizes.rounds}: {size:,} rows")
                runs[size].append(outboxes[size].measure(bench.sizes.window))
        bench.say("backlog: checking what was sent")
    # The slowest of three runs is slower than the fastest even if all sizes are alike. So the
    # medians select the two sizes, and each round compares these.
    by_rate = sorted(runs.values(), key=lambda of: measured(run.rate for run in of).median)
    flat = [slow.rate / fast.rate for slow, fast in zip(by_rate[0], by_rate[-1], strict=True)]
    largest = runs[max(runs)]
    return ExperimentResult(
        figures={"backlog_flatness": measured(flat, largest)},
        absolutes=rates({f"backlog_of_{size}": of for size, of in runs.items()}),
    )
