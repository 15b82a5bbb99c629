"""The time from a commit to the committed effect downstream."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.end_to_end_latency import to_effect
from benchmarks.harness.context import Bench, ExperimentResult

FIGURES: Final = ("effect_p50_ms", "effect_p99_ms")


def run(bench: Bench) -> ExperimentResult:
    """Write events at a steady pace and wait for their effects."""
    rate, seconds = bench.sizes.latency_rate, bench.sizes.latency_seconds
    bench.say(f"commit to effect: {rate} events/s for {seconds:.0f} s")
    return to_effect(bench, rate=rate, seconds=seconds).result("effect", "commit to effect")
