"""The lateness of delayed events, next to many other events that wait for their due time."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Final

import psutil
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, SOURCE, KeyPosition, check, payload_of, position_of
from benchmarks.data.fill_outbox import fill_delayed
from benchmarks.experiments.end_to_end_latency import Delays
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.kafka_arrivals import Arrivals
from benchmarks.harness.samples import Measured, measured
from benchmarks.harness.servers import RunEnvironment
from benchmarks.harness.workers import worker
from shieldtx import Event, Settings, ShieldTx

FIGURES: Final = ("delay_late_p99_ms",)
RATE: Final = 20
"""Events that become due in a second, at irregular times: a relay has to wake for most of them."""
KEYS: Final = 50
LEAD_S: Final = 4.0
"""Seconds from the writing of all events to the first due time."""
IDLE_S: Final = 5.0


def run(bench: Bench) -> ExperimentResult:
    """Write events that are due one after the other, and wait for their records."""
    rows, seconds = bench.sizes.delayed_rows, bench.sizes.due_seconds
    events = int(RATE * seconds)
    with bench.servers.place() as place, ExitStack() as running:
        bench.say(f"due times: writing {rows:,} delayed rows")
        with place.connect() as connection:
            fill_delayed(connection, rows)
        place.tidy()
        shield = ShieldTx(Settings(source=SOURCE, database_url=place.url, relay_wakeup=True))
        running.callback(shield.close)
        shield.declare(EVENT_TYPE)
        relay = psutil.Process(running.enter_context(worker(place, "relay")).pid)
        arrivals = running.enter_context(Arrivals(place))
        # The first event of a run, which connects everything, does not count.
        _write(shield, {KeyPosition(key="warm", number=1): 0.0})
        arrivals.read(1)
        bench.say(f"due times: {events} events in {seconds:.0f} s, beside {rows:,} rows")
        idle = _idle(relay)
        used, wal = _cpu(relay), place.wal()
        _write(shield, _schedule(events))
        found = arrivals.read(events)
        delays = Delays(
            milliseconds=_lateness(place, found),
            cpu_us=(_cpu(relay) - used) / events * 1e6,
            wal_per_event=(place.wal() - wal) / events,
            rate=RATE,
            load=RATE,
        )
    return ExperimentResult(
        figures={"delay_late_p99_ms": delays.percentile(0.99)},
        absolutes={
            "delay_late_p50_ms": delays.percentile(0.50),
            "delay_late_longest_ms": measured([max(delays.milliseconds.values())]),
            "delay_waiting_rows": measured([rows]),
            "delay_idle_relay_cpu_us_per_s": idle,
        },
        distributions={"due time to record": list(delays.milliseconds.values())},
    )


def _schedule(events: int) -> dict[KeyPosition, float]:
    """Return the seconds until each event is due, the later ones first: they are written so."""
    spread = random.Random(1)  # noqa: S311  the same times in each run
    moments = sorted(spread.uniform(0, events / RATE) for _ in range(events))
    positions = [position_of(index, KEYS) for index in range(events)]
    return dict(reversed([(m, LEAD_S + at) for m, at in zip(positions, moments, strict=True)]))


def _write(shield: ShieldTx, schedule: Mapping[KeyPosition, float]) -> None:
    with Session(shield.engine) as session, session.begin():
        for position, seconds in schedule.items():
            event = Event(type=EVENT_TYPE, key=position.key, payload=payload_of(position))
            shield.outbox.add(session, event, delay=timedelta(seconds=seconds))


def _lateness(
    place: RunEnvironment, found: Mapping[KeyPosition, float]
) -> dict[KeyPosition, float]:
    """Return how many milliseconds after its due time each record was readable, by due time."""
    statement = (
        "SELECT payload::json->>'key', (payload::json->>'n')::int, "
        "extract(epoch FROM due_at)::float8 FROM shield_outbox "
        "WHERE key LIKE 'key-%%' ORDER BY due_at"
    )
    with place.connect() as connection:
        rows = connection.execute(statement).fetchall()
    due = {KeyPosition(key=key, number=number): at for key, number, at in rows}
    # Each key is in the order of the due times, which is not the order of writing.
    check(found, due).require_whole("the delayed events")
    return {position: (found[position] - at) * 1e3 for position, at in due.items()}


def _idle(relay: psutil.Process) -> Measured:
    """Return a relay's processor time per second while all events wait."""
    began, used = time.monotonic(), _cpu(relay)
    time.sleep(IDLE_S)
    return measured([(_cpu(relay) - used) / (time.monotonic() - began) * 1e6])


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)
