"""The delay of new events until they are readable in Kafka, next to many rows of blocked keys."""

from __future__ import annotations

from typing import Final

from benchmarks.data.fill_outbox import fill_behind
from benchmarks.experiments.end_to_end_latency import to_record
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.samples import measured
from benchmarks.harness.servers import RunEnvironment

FIGURES: Final = ("held_keys_fresh_p99_ms",)
RATE: Final = 100
"""Events per second."""


def run(bench: Bench) -> ExperimentResult:
    """Write the rows at once, start a relay, and write new events at a steady pace.

    The rows are queued then, so that the first claims read them: a separate table shows the longest
    time of the first events.
    """
    sizes = bench.sizes

    def prepare(place: RunEnvironment) -> None:
        bench.say(f"held keys: writing {sizes.rows_behind:,} rows behind {sizes.held_keys:,} keys")
        with place.connect() as connection:
            fill_behind(connection, sizes.rows_behind, keys=sizes.held_keys)
        place.tidy()
        bench.say(
            f"held keys: {RATE} events/s for {sizes.held_seconds:.0f} s while they are blocked"
        )

    delays = to_record(
        bench,
        rate=RATE,
        seconds=sizes.held_seconds,
        warm=sizes.held_warm_seconds,
        prepare=prepare,
    )
    return ExperimentResult(
        figures={"held_keys_fresh_p99_ms": delays.percentile(0.99)},
        absolutes={
            "held_keys_fresh_p50_ms": delays.percentile(0.50),
            "held_keys_fresh_longest_ms": measured([max(delays.milliseconds.values())]),
            "held_keys_first_seconds_longest_ms": measured([delays.warm_longest_ms]),
        },
    )
