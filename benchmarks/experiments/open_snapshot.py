"""A relay while another session holds a snapshot open, so that no dead row can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from benchmarks.experiments.steady_backlog import SteadyBacklog
from benchmarks.harness.context import Bench, ExperimentResult, compared, rates
from benchmarks.harness.samples import Run
from benchmarks.harness.servers import RunEnvironment

FIGURES: Final = {"held_snapshot": ("relay_beside_snapshot", "relay_without_snapshot")}
BACKLOG: Final = 20_000


def run(bench: Bench) -> ExperimentResult:
    """Send the same number of events with and without it, written while the relay runs."""
    events = bench.sizes.snapshot_events
    runs = bench.by_turns(
        f"held snapshot, {events:,} events",
        {
            "relay_without_snapshot": lambda: _run(bench, events, held=False),
            "relay_beside_snapshot": lambda: _run(bench, events, held=True),
        },
    )
    return ExperimentResult(figures=compared(runs, FIGURES), absolutes=rates(runs))


def _run(bench: Bench, events: int, *, held: bool) -> Run:
    with bench.servers.place() as place, SteadyBacklog(bench, place, backlog=BACKLOG) as steady:
        place.tidy()
        if not held:
            return steady.measure(events)
        with _snapshot(place):
            return steady.measure(events)


@contextmanager
def _snapshot(place: RunEnvironment) -> Iterator[None]:
    """Hold a snapshot in a separate session."""
    with psycopg.connect(place.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM shield_outbox")
        yield
        connection.rollback()
