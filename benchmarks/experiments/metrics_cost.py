"""The relay with metrics, which are scraped once a second, against the relay without."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.relay import ours
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.samples import losses

FIGURES: Final = ("metrics_cost",)


def run(bench: Bench) -> ExperimentResult:
    """Drain the same backlog with and without, alternating."""
    runs = bench.by_turns(
        "metrics",
        {
            "relay_without_metrics": lambda: ours(bench, "kafka-python", relays=1),
            "relay_with_metrics": lambda: ours(bench, "kafka-python", relays=1, metrics=True),
        },
    )
    return ExperimentResult(
        figures={"metrics_cost": losses(runs["relay_with_metrics"], runs["relay_without_metrics"])},
        absolutes=rates(runs),
    )
