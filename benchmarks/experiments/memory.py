"""The memory of a relay that has sent many events."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.samples import Sample, measured

FIGURES: Final = ("relay_rss_mb", "relay_rss_growth")
BACKLOG: Final = 20_000
_MB: Final = 1_000_000


def run(bench: Bench) -> ExperimentResult:
    """Measure at the start, after a tenth of the events and at their end."""
    events = bench.sizes.memory_events
    bench.say(f"memory of a relay: {events:,} events")
    sizes: list[tuple[int, float]] = []

    def note(sample: Sample) -> bool:
        sizes.append((sample.count, sample.rss / _MB))
        return False

    with bench.servers.place() as place, SteadyBacklog(bench, place, backlog=BACKLOG) as steady:
        place.tidy()
        run = steady.measure(events, is_over=note)
    start, end = sizes[0][1], sizes[-1][1]
    tenth = next(size for count, size in sizes if count >= events / 10)
    return ExperimentResult(
        figures={
            "relay_rss_mb": measured([end], [run]),
            "relay_rss_growth": measured([end / tenth], [run]),
        },
        absolutes={
            "relay_rss_start_mb": measured([start]),
            "relay_rss_tenth_mb": measured([tenth]),
            "relay_rss_highest_mb": measured([max(size for _, size in sizes)]),
            **rates({"relay_long_run": [run]}),
        },
    )
