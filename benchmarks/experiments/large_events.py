"""The memory of a relay and of a consumer that process large events."""

from __future__ import annotations

import time
from typing import Final

import psutil

from benchmarks.data.fill_outbox import fill
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.samples import BenchmarkFailed, Measured, measured
from benchmarks.harness.servers import RunEnvironment
from benchmarks.harness.workers import worker
from benchmarks.subjects.application import GROUP

FIGURES: Final = ("relay_rss_large_mb", "consumer_rss_large_mb")
SIZE: Final = 900_000
"""Bytes of a payload."""
CHUNK: Final = 100
"""Events per writing statement."""
SILENCE_S: Final = 60.0
EVERY_S: Final = 0.02
_MB: Final = 1_000_000

_SENT: Final = "SELECT count(*) FROM shield_outbox WHERE status = 'PROCESSED'"
_EFFECTS: Final = "SELECT count(*) FROM bench_effect"


def run(bench: Bench) -> ExperimentResult:
    """Publish all events, then consume them, each with the command that an operator starts."""
    events = bench.sizes.large_events
    bench.say(f"large events: writing {events:,}")
    with bench.servers.place() as place:
        with place.connect() as connection:
            keys = bench.sizes.keys
            fill(connection, begin=0, end=events, keys=keys, note="x" * SIZE, chunk=CHUNK)
        bench.say(f"large events: {events:,} through a relay")
        relay = _highest(place, _SENT, events, "relay")
        bench.say(f"large events: {events:,} through a consumer")
        consumer = _highest(place, _EFFECTS, events, "consume", GROUP)
    return ExperimentResult(
        figures={"relay_rss_large_mb": relay, "consumer_rss_large_mb": consumer}
    )


def _highest(place: RunEnvironment, count: str, events: int, *command: str) -> Measured:
    """Return the highest memory of a worker in MB until a query counts the given events."""
    highest = done = 0
    moved = time.monotonic()
    with worker(place, *command) as started, place.connect() as connection:
        process = psutil.Process(started.pid)
        while done < events:
            row = connection.execute(count).fetchone()
            assert row is not None
            if row[0] > done:
                done, moved = row[0], time.monotonic()
            if time.monotonic() - moved > SILENCE_S:
                raise BenchmarkFailed(f"{command[0]}: {done} of {events} events, and no more come")
            highest = max(highest, process.memory_info().rss)
            time.sleep(EVERY_S)
    return measured([highest / _MB])
