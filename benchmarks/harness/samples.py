"""Measurements: samples of a running process, runs, and their medians."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", int, float)


class BenchmarkFailed(Exception):
    """A benchmark's own result is wrong: a record lost or out of order, an effect missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The progress of a measured process at a moment, from its own report."""

    at: float
    """Seconds of the machine's monotonic clock, which all processes share."""
    cpu: float
    """Seconds of processor time, of all its threads."""
    count: int
    """Events done."""
    purged: int = 0
    """Rows that it has purged in addition."""
    rss: int = 0
    """Bytes of memory that it uses."""
    wal: int | None = None
    """Bytes that the database had written to its log."""
    servers_cpu: float | None = None
    """Seconds of processor time of PostgreSQL and Kafka together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One measured part of a run."""

    events: int
    seconds: float
    cpu_seconds: float
    wal_bytes: int | None = None
    servers_cpu_seconds: float | None = None

    @classmethod
    def between(cls, begin: Sample, end: Sample) -> Run:
        """Return the part between two samples of a process."""
        return cls(
            events=end.count - begin.count,
            seconds=end.at - begin.at,
            cpu_seconds=end.cpu - begin.cpu,
            wal_bytes=_less(end.wal, begin.wal),
            servers_cpu_seconds=_less(end.servers_cpu, begin.servers_cpu),
        )

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of processor time per event."""
        return self.cpu_seconds / self.events * 1e6

    @property
    def wal_per_event(self) -> float | None:
        """Bytes of the database's log per event."""
        return None if self.wal_bytes is None else self.wal_bytes / self.events

    @property
    def servers_cpu_us(self) -> float | None:
        """Microseconds of processor time of both servers per event."""
        spent = self.servers_cpu_seconds
        return None if spent is None else spent / self.events * 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A figure: one value per round, and the cost of an event."""

    values: tuple[float, ...]
    cpu_us: float | None = None
    wal_per_event: float | None = None
    servers_cpu_us: float | None = None

    @property
    def median(self) -> float:
        """The representative value."""
        return statistics.median(self.values)

    @property
    def lowest(self) -> float:
        """The lowest of the rounds."""
        return min(self.values)

    @property
    def highest(self) -> float:
        """The highest of the rounds."""
        return max(self.values)


def measured(values: Iterable[float], runs: Sequence[Run] = ()) -> Measured:
    """Return a figure of its rounds' values, with the median cost of these runs' events."""
    return Measured(
        values=tuple(values),
        cpu_us=_median(run.cpu_us for run in runs),
        wal_per_event=_median(run.wal_per_event for run in runs),
        servers_cpu_us=_median(run.servers_cpu_us for run in runs),
    )


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> Measured:
    """Return the ratio of shieldtx's rate to the peer's, round by round."""
    pairs = zip(ours, theirs, strict=True)
    return measured((our.rate / their.rate for our, their in pairs), ours)


def losses(with_: Sequence[Run], without: Sequence[Run]) -> Measured:
    """Return the fraction of the rate that is lost with something, round by round."""
    pairs = zip(with_, without, strict=True)
    return measured((1 - one.rate / other.rate for one, other in pairs), with_)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part (0 to 1) of all values does not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise BenchmarkFailed("nothing was measured, so there is no percentile")
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _less(end: N | None, begin: N | None) -> N | None:
    return None if end is None or begin is None else end - begin


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
