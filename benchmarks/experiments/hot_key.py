"""A key with half of the events, and its influence on the other keys."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.end_to_end_latency import Delays, to_record
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.samples import Measured, measured, percentile

FIGURES: Final = ("hot_key",)
RATE: Final = 1_000


def run(bench: Bench) -> ExperimentResult:
    """Measure commit to record with and without the hot key, alternating."""
    hot: list[float] = []
    even: list[float] = []
    cost: Delays | None = None
    for number in range(bench.sizes.rounds):
        for name in ("without", "with")[:: 1 if number % 2 == 0 else -1]:
            bench.say(f"hot key, round {number + 1} of {bench.sizes.rounds}: {name}")
            delays = to_record(
                bench, rate=RATE, seconds=bench.sizes.hot_key_seconds, hot=name == "with"
            )
            others = [ms for position, ms in delays.milliseconds.items() if position.key != "hot"]
            (hot if name == "with" else even).append(percentile(others, 0.99))
            cost = delays
    pairs = zip(hot, even, strict=True)
    return ExperimentResult(
        figures={
            "hot_key": Measured(
                values=tuple(beside / without for beside, without in pairs),
                cpu_us=cost.cpu_us if cost else None,
                wal_per_event=cost.wal_per_event if cost else None,
            )
        },
        absolutes={
            "hot_key_other_keys_p99_ms": measured(hot),
            "hot_key_without_p99_ms": measured(even),
        },
    )
