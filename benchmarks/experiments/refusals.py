"""The consumer when its handler refuses events: one of twenty, and all, against none."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import uuid4

from benchmarks.data.events import KeyPosition, check
from benchmarks.experiments.consumer import WARM, produce
from benchmarks.harness.context import Bench, ExperimentResult, compared, rates, run_subjects
from benchmarks.harness.samples import BenchmarkFailed, Run
from benchmarks.harness.servers import RunEnvironment

FIGURES: Final = {
    "refused_5_vs_none": ("refused_5", "refused_none"),
    "refused_all_vs_none": ("refused_all", "refused_none"),
}


def run(bench: Bench) -> ExperimentResult:
    """Consume the same topic with handlers that refuse none, one of twenty, or all."""
    records = bench.sizes.refused
    with bench.servers.place() as topic:
        produce(topic, records + WARM, keys=bench.sizes.keys)
        runs = bench.by_turns(
            "refusals",
            {
                "refused_none": lambda: _consume(bench, topic, records=records, refuses=0),
                "refused_5": lambda: _consume(bench, topic, records=records, refuses=20),
                "refused_all": lambda: _consume(bench, topic, records=records, refuses=1),
            },
        )
    return ExperimentResult(figures=compared(runs, FIGURES), absolutes=rates(runs))


def _consume(bench: Bench, topic: RunEnvironment, *, records: int, refuses: int) -> Run:
    """Consume into a separate database; `refuses` is the number of events for each refusal."""
    with bench.servers.place() as own:
        place = replace(own, prefix=topic.prefix)
        job = {"group": f"bench-{uuid4()}", "lists": False, "refuses": refuses}
        run = run_subjects(place, "consumer", [job], events=records, warm=WARM)
        with place.connect() as connection:
            effects = connection.execute("SELECT key, n FROM bench_effect ORDER BY id").fetchall()
            refused = connection.execute(
                "SELECT i.payload::json ->> 'key', (i.payload::json ->> 'n')::bigint "
                "FROM shield_outbox o JOIN shield_inbox i ON i.event_id = o.causation_id "
                "WHERE o.tx_kind = 'ROLLBACK' AND i.status = 'MAX_RECONSUMED' ORDER BY o.seq"
            ).fetchall()
    found = [KeyPosition(key=key, number=number) for key, number in [*effects, *refused]]
    if bool(refused) != bool(refuses) or bool(effects) != (refuses != 1):
        raise BenchmarkFailed(f"{len(effects)} events were applied and {len(refused)} refused")
    wanted = {KeyPosition(key=p.key, number=n) for p in found for n in range(1, p.number + 1)}
    check(found, wanted).require_whole("effects and rollback events", ordered=False)
    return run
