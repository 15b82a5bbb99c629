"""A relay while the rows whose retention is over are purged."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Outcome, rates
from benchmarks.experiments.standing import Standing
from benchmarks.filling import fill_terminal
from benchmarks.measures import BenchmarkFailed, Sample, losses, measured
from benchmarks.servers import Place

FIGURES: Final = ("purge_rows_per_s", "purge_cost")
BACKLOG: Final = 20_000
LONGEST: Final = 10
"""So many times as many events may be sent before the last row is gone."""


def run(bench: Bench) -> Outcome:
    """Measure the relay beside the terminal rows, and then while they are purged."""
    rows = bench.sizes.purged_rows
    with bench.servers.place() as place, Standing(bench, place, backlog=BACKLOG) as standing:
        bench.say(f"purge: writing {rows:,} terminal rows")
        with place.connect() as connection:
            fill_terminal(connection, rows, keys=bench.sizes.keys)
        place.tidy()
        bench.say("purge: the relay without it")
        without = standing.measure(bench.sizes.window)
        bench.say(f"purge: the relay beside it, until {rows:,} rows are gone")
        course: list[Sample] = []

        def is_over(sample: Sample) -> bool:
            course.append(sample)
            return sample.purged >= rows

        beside = standing.measure(LONGEST * rows, is_over=is_over, purge=True)
        _require_gone(place)
    begin, end = next(sample for sample in course if sample.purged), course[-1]
    rate = (end.purged - begin.purged) / (end.at - begin.at)
    return Outcome(
        figures={
            "purge_rows_per_s": measured([rate]),
            "purge_cost": losses([beside], [without]),
        },
        absolutes=rates({"relay_beside_purge": [beside], "relay_without_purge": [without]}),
    )


def _require_gone(place: Place) -> None:
    """Count for oneself what the purge says to have done."""
    with place.connect() as connection:
        row = connection.execute(
            "SELECT count(*) FROM shield_outbox WHERE settled_at < now() - interval '1 day'"
        ).fetchone()
    if row != (0,):
        raise BenchmarkFailed(f"rows whose retention is over are still there: {row}")
