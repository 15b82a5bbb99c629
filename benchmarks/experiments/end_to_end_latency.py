"""The times from a commit to the record in Kafka, and to its effect downstream."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.data.events import KeyPosition, check
from benchmarks.harness.child_process import Subject
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.kafka_arrivals import Arrivals
from benchmarks.harness.samples import BenchmarkFailed, Measured, measured, percentile
from benchmarks.harness.servers import RunEnvironment
from benchmarks.harness.workers import worker
from benchmarks.subjects.application import GROUP

WARM_S: Final = 2.0
"""The first events of a run, which connect everything, do not count."""
SLICES: Final = 3
"""Parts of the time, whose percentiles give the spread of a percentile."""
SILENCE_S: Final = 15.0
KEPT_PACE: Final = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Delays:
    """The delays of the events, in the order of the commits."""

    milliseconds: Mapping[KeyPosition, float]
    cpu_us: float
    """Processor time of the worker process per event."""
    wal_per_event: float
    rate: int
    """Intended rate of the writer, in events per second."""
    load: float
    """Actual rate of the writer, in events per second."""
    warm_longest_ms: float = 0.0
    """The longest delay of the events that do not count."""

    def result(self, name: str, title: str) -> ExperimentResult:
        """Return the two percentiles as figures, and all delays for the plots."""
        return ExperimentResult(
            figures={
                f"{name}_p50_ms": self.percentile(0.50),
                f"{name}_p99_ms": self.percentile(0.99),
            },
            absolutes={f"{name}_load_events_per_s": measured([self.load])},
            remarks=self._remarks(name),
            distributions={title: list(self.milliseconds.values())},
        )

    def _remarks(self, name: str) -> dict[str, str]:
        if self.load >= self.rate * KEPT_PACE:
            return {}
        return {
            name: f"the machine is too busy, {self.load:.0f} of {self.rate} events/s were written"
        }

    def percentile(self, part: float) -> Measured:
        """Return a percentile of all delays; the spread is that of their thirds."""
        values = list(self.milliseconds.values())
        size = max(1, len(values) // SLICES)
        slices = [values[begin : begin + size] for begin in range(0, size * SLICES, size)]
        return Measured(
            values=tuple(percentile(each, part) for each in slices if each),
            cpu_us=self.cpu_us,
            wal_per_event=self.wal_per_event,
        )


def to_record(
    bench: Bench,
    *,
    rate: int,
    seconds: float,
    hot: bool = False,
    warm: float = WARM_S,
    prepare: Callable[[RunEnvironment], None] = lambda _: None,
) -> Delays:
    """Measure from the commit to the time at which a waiting consumer has the record.

    The events of the first `warm` seconds do not count. `prepare` fills the outbox before.
    """
    events = int(rate * (seconds + warm))
    with bench.servers.place() as place, ExitStack() as running:
        prepare(place)
        relay = psutil.Process(running.enter_context(worker(place, "relay")).pid)
        arrivals = running.enter_context(Arrivals(place))
        used = _cpu(relay)
        writer = _writer(running, bench, place, rate=rate, seconds=seconds + warm, hot=hot)
        wal = place.wal()
        writer.begin()
        found = arrivals.read(events)
        cpu = (_cpu(relay) - used) / events * 1e6
        wal_per_event = (place.wal() - wal) / events
        writer.hear()
        committed = _committed(place, "bench_order")
    check(found, committed).require_whole("the records that were waited for")
    every = _delays(committed, found, warm=0.0)
    counted = _delays(committed, found, warm=warm)
    return Delays(
        milliseconds=counted,
        cpu_us=cpu,
        wal_per_event=wal_per_event,
        rate=rate,
        load=_load(committed),
        warm_longest_ms=max(each for position, each in every.items() if position not in counted),
    )


def to_effect(bench: Bench, *, rate: int, seconds: float) -> Delays:
    """Measure from the commit to the commit of the handler's effect."""
    events = int(rate * (seconds + WARM_S))
    with bench.servers.place() as place, ExitStack() as running:
        running.enter_context(worker(place, "relay"))
        consumer = psutil.Process(running.enter_context(worker(place, "consume", GROUP)).pid)
        used = _cpu(consumer)
        writer = _writer(running, bench, place, rate=rate, seconds=seconds + WARM_S, hot=False)
        wal = place.wal()
        writer.begin()
        writer.hear(within=seconds + 60.0)
        _await_effects(place, events)
        cpu = (_cpu(consumer) - used) / events * 1e6
        wal_per_event = (place.wal() - wal) / events
        committed = _committed(place, "bench_order")
        effects = _committed(place, "bench_effect")
        with place.connect() as connection:
            rows = connection.execute("SELECT key, n FROM bench_effect ORDER BY id").fetchall()
    positions = [KeyPosition(key=key, number=number) for key, number in rows]
    check(positions, committed).require_whole("the effects")
    return Delays(
        milliseconds=_delays(committed, effects),
        cpu_us=cpu,
        wal_per_event=wal_per_event,
        rate=rate,
        load=_load(committed),
    )


def _writer(
    running: ExitStack, bench: Bench, place: RunEnvironment, *, rate: int, seconds: float, hot: bool
) -> Subject:
    job = {"rate": rate, "seconds": seconds, "keys": bench.sizes.keys, "hot": hot}
    writer = running.enter_context(Subject("writer", place.job | job))
    writer.await_ready()
    return writer


def _committed(place: RunEnvironment, table: str) -> dict[KeyPosition, float]:
    """Return when each row of a table was committed, in that order."""
    statement = (
        f"SELECT key, n, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM {table} "  # noqa: S608
        "ORDER BY 3, id"
    )
    with place.connect() as connection:
        rows = connection.execute(statement).fetchall()
    return {KeyPosition(key=key, number=number): at for key, number, at in rows}


def _delays(
    begun: Mapping[KeyPosition, float], ended: Mapping[KeyPosition, float], *, warm: float = WARM_S
) -> dict[KeyPosition, float]:
    first = min(begun.values()) + warm
    return {position: (ended[position] - at) * 1e3 for position, at in begun.items() if at >= first}


def _load(committed: Mapping[KeyPosition, float]) -> float:
    return len(committed) / (max(committed.values()) - min(committed.values()))


def _await_effects(place: RunEnvironment, events: int) -> None:
    count, deadline = 0, time.monotonic() + SILENCE_S
    with place.connect() as connection:
        while count < events:
            row = connection.execute("SELECT count(*) FROM bench_effect").fetchone()
            assert row is not None
            if row[0] > count:
                count, deadline = row[0], time.monotonic() + SILENCE_S
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{count} of {events} effects are there, and no more come")
            time.sleep(0.2)


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)
