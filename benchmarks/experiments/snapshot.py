"""A relay while another session holds a snapshot open, so that no dead row can be taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from benchmarks.bench import Bench, Outcome, rates
from benchmarks.experiments.standing import Standing
from benchmarks.measures import Run, ratios
from benchmarks.servers import Place

FIGURES: Final = ("held_snapshot",)
BACKLOG: Final = 20_000


def run(bench: Bench) -> Outcome:
    """Send the same number of events with and without it, written while the relay works."""
    events = bench.sizes.snapshot_events
    bench.say(f"held snapshot: {events:,} events without it")
    clean = _run(bench, events, held=False)
    bench.say(f"held snapshot: {events:,} events beside it")
    held = _run(bench, events, held=True)
    return Outcome(
        figures={"held_snapshot": ratios([held], [clean])},
        absolutes=rates({"relay_beside_snapshot": [held], "relay_without_snapshot": [clean]}),
    )


def _run(bench: Bench, events: int, *, held: bool) -> Run:
    with bench.servers.place() as place, Standing(bench, place, backlog=BACKLOG) as standing:
        place.tidy()
        if not held:
            return standing.measure(events)
        with _snapshot(place):
            return standing.measure(events)


@contextmanager
def _snapshot(place: Place) -> Iterator[None]:
    """Hold a snapshot in a session of its own."""
    with psycopg.connect(place.dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM shield_outbox")
        yield
        connection.rollback()
