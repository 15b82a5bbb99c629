"""A relay while the rows whose retention is over are purged."""

from __future__ import annotations

from typing import Any, Final

from psycopg import Connection

from benchmarks.data.fill_outbox import fill_terminal
from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.context import Bench, ExperimentResult, rates
from benchmarks.harness.samples import BenchmarkFailed, Run, Sample, losses, measured
from benchmarks.harness.servers import RunEnvironment

FIGURES: Final = ("purge_rows_per_s", "purge_cost")
BACKLOG: Final = 20_000
LONGEST: Final = 10
"""Factor by which more events may be sent before the last row is purged."""


def run(bench: Bench) -> ExperimentResult:
    """Measure the relay next to the terminal rows, and while they are purged, alternating."""
    rows, window = bench.sizes.purged_rows, bench.sizes.window
    speeds: list[float] = []
    with bench.servers.place() as place, SteadyBacklog(bench, place, backlog=BACKLOG) as steady:

        def without() -> Run:
            _fill_up(bench, place, rows)
            return steady.measure(window)

        def beside() -> Run:
            _fill_up(bench, place, rows)
            run, speed = _purged(steady, place, rows)
            speeds.append(speed)
            return run

        runs = bench.by_turns(
            f"purge of {rows:,} rows",
            {"relay_without_purge": without, "relay_beside_purge": beside},
        )
    return ExperimentResult(
        figures={
            "purge_rows_per_s": measured(speeds),
            "purge_cost": losses(runs["relay_beside_purge"], runs["relay_without_purge"]),
        },
        absolutes=rates(runs),
    )


def _fill_up(bench: Bench, place: RunEnvironment, rows: int) -> None:
    """Refill the terminal rows up to `rows`, as before the first round."""
    with place.connect() as connection:
        fill_terminal(connection, rows - _terminal(connection), keys=bench.sizes.keys)
    place.tidy()


def _purged(steady: SteadyBacklog, place: RunEnvironment, rows: int) -> tuple[Run, float]:
    """Measure the relay until all terminal rows are purged; return the purged rows per second."""
    course: list[Sample] = []

    def is_over(sample: Sample) -> bool:
        course.append(sample)
        return sample.purged >= rows

    run = steady.measure(LONGEST * rows, is_over=is_over, purge=True)
    # Counted independently of the purge's own report.
    with place.connect() as connection:
        if left := _terminal(connection):
            raise BenchmarkFailed(f"rows whose retention is over are still there: {left}")
    begin, end = next(sample for sample in course if sample.purged), course[-1]
    return run, (end.purged - begin.purged) / (end.at - begin.at)


def _terminal(connection: Connection) -> int:
    row: Any = connection.execute(
        "SELECT count(*) FROM shield_outbox WHERE settled_at < now() - interval '1 day'"
    ).fetchone()
    return int(row[0])
