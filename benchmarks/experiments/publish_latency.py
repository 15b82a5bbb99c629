"""The time from a commit to the record in Kafka, with a relay that is woken by notifications."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.end_to_end_latency import to_record
from benchmarks.harness.context import Bench, ExperimentResult

FIGURES: Final = ("publish_p50_ms", "publish_p99_ms")


def run(bench: Bench) -> ExperimentResult:
    """Write events at a steady pace and wait for their records."""
    rate, seconds = bench.sizes.latency_rate, bench.sizes.latency_seconds
    bench.say(f"commit to record: {rate} events/s for {seconds:.0f} s")
    return to_record(bench, rate=rate, seconds=seconds).result("publish", "commit to record")
