"""Handlers that wait for another service: one at a time, and several keys at a time."""

from __future__ import annotations

from typing import Final

from benchmarks.experiments.consumer import consume, produce
from benchmarks.harness.context import Bench, ExperimentResult, compared, rates

AT_A_TIME: Final = 16
WAITS: Final = 0.02
"""Seconds that each handler waits."""
WARM: Final = 50
FIGURES: Final = {
    "consumer_waiting_handlers": ("waiting_tasks", "waiting_alone"),
    "consumer_waiting_threads": ("waiting_threads", "waiting_alone"),
}


def run(bench: Bench) -> ExperimentResult:
    """Consume the same topic with each subject."""
    records = bench.sizes.waiting
    with bench.servers.place() as topic:
        produce(topic, records + WARM, keys=bench.sizes.keys)

        def handle(*, concurrency: int, coroutine: bool) -> object:
            return lambda: consume(
                bench,
                topic,
                records=records,
                warm=WARM,
                waits=WAITS,
                concurrency=concurrency,
                coroutine=coroutine,
            )

        runs = bench.by_turns(
            "waiting handlers",
            {
                "waiting_alone": handle(concurrency=1, coroutine=False),
                "waiting_tasks": handle(concurrency=AT_A_TIME, coroutine=True),
                "waiting_threads": handle(concurrency=AT_A_TIME, coroutine=False),
            },
        )
    return ExperimentResult(figures=compared(runs, FIGURES), absolutes=rates(runs))
