"""Half messages: their cost compared with plain events, and the rate of their check-backs."""

from __future__ import annotations

from typing import Final

from benchmarks.data.fill_outbox import fill_half
from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.child_process import Subject, sample_in
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.interleaved_blocks import by_blocks
from benchmarks.harness.samples import BenchmarkFailed, Run, losses, measured, ratios

FIGURES: Final = ("half_vs_add", "checks_per_s", "half_rows_cost")
BACKLOG: Final = 20_000


def run(bench: Bench) -> ExperimentResult:
    """Measure each figure separately."""
    plain: list[Run] = []
    half: list[Run] = []
    checks: list[Run] = []
    for number in range(bench.sizes.rounds):
        bench.say(f"half messages, round {number + 1} of {bench.sizes.rounds}")
        with bench.servers.place() as place:
            kinds = by_blocks(bench, place, "half_messages")
        plain.append(kinds[0])
        half.append(kinds[1])
        checks.append(_checks(bench))
    beside = _beside(bench)
    return ExperimentResult(
        figures={
            "half_vs_add": ratios(half, plain),
            "checks_per_s": measured((run.rate for run in checks), checks),
            "half_rows_cost": losses(beside["relay_beside_half"], beside["relay_without_half"]),
        },
        absolutes=rates({"half_messages": half, "plain_events": plain, **beside}),
    )


def _checks(bench: Bench) -> Run:
    """Check back messages that are all due, and whose transactions have all committed."""
    rows = bench.sizes.half_messages
    with bench.servers.place() as place:
        with place.connect() as connection:
            fill_half(connection, rows, is_due=True)
        place.tidy()
        with Subject("checks", place.job) as subject:
            subject.await_ready()
            subject.begin()
            begin, end = sample_in(subject.hear()), sample_in(subject.hear())
        with place.connect() as connection:
            found = connection.execute(
                "SELECT count(*) FROM shield_outbox WHERE status = 'INIT' AND checks = 1"
            ).fetchone()
    if found != (rows,):
        raise BenchmarkFailed(f"{found} of {rows} half messages were checked once and committed")
    return Run(events=rows, seconds=end.at - begin.at, cpu_seconds=end.cpu - begin.cpu)


def _beside(bench: Bench) -> dict[str, list[Run]]:
    """Relay new events with and without open half messages in the table, alternating."""
    with (
        bench.servers.place() as plain,
        bench.servers.place() as crowded,
        SteadyBacklog(bench, plain, backlog=BACKLOG) as without,
        SteadyBacklog(bench, crowded, backlog=BACKLOG) as beside,
    ):
        with crowded.connect() as connection:
            fill_half(connection, bench.sizes.half_messages, is_due=False)
        for place in (plain, crowded):
            place.tidy()
        return bench.by_turns(
            "half messages open",
            {
                "relay_without_half": lambda: without.measure(bench.sizes.window),
                "relay_beside_half": lambda: beside.measure(bench.sizes.window),
            },
        )
