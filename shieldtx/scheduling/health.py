"""Health of a worker: whether its passes end in time, and whether any of them succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shieldtx.errors import BrokerUnavailable

NEVER: Final = timedelta(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """A job that hangs or fails, and for how long."""

    job: str
    seconds: float


class Health:
    """Records when each pass began, and since when the passes of each job fail."""

    def __init__(
        self,
        *,
        watchdog: timedelta,
        failure_limit: timedelta,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Allow a pass `watchdog`, and a job `failure_limit` without success (NEVER: no limit)."""
        self._clock = clock
        self._wall_clock = wall_clock
        self._watchdog = watchdog
        self._failure_limit = failure_limit
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        """When the last pass of each job ended."""
        self._succeeded: dict[str, tuple[float, float]] = {}
        """The time of each job's last success, and the same as a Unix time."""
        self._failed: set[str] = set()
        """The jobs whose last pass has failed."""
        self._waiting: set[str] = set()
        self._started = clock()
        self._failing: dict[str, tuple[float, float]] = {}
        """End times of each job's first and last failed pass since its last successful pass."""

    @contextmanager
    def watching(self, job: str) -> Iterator[None]:
        """Count the block as one pass of a job, or as a part of it."""
        self._began[job] = self._clock()
        try:
            yield
        finally:
            self._ended[job] = self._clock()
            self._began.pop(job, None)

    @contextmanager
    def waiting(self, job: str) -> Iterator[None]:
        """Count the block as a wait between two passes of one run, however long it takes."""
        self._waiting.add(job)
        try:
            yield
        finally:
            self._ended[job] = self._clock()
            self._waiting.discard(job)

    def succeeded(self, job: str) -> None:
        """Record a successful pass."""
        self._failing.pop(job, None)
        self._failed.discard(job)
        self._succeeded[job] = self._clock(), self._wall_clock()

    def failed(self, job: str, error: Exception) -> None:
        """Record a failed pass; an unreachable broker does not count: a restart does not help."""
        self._failed.add(job)
        if isinstance(error, BrokerUnavailable):
            self._failing.pop(job, None)
        else:
            now = self._clock()
            first, _ = self._failing.get(job, (now, now))
            self._failing[job] = first, now

    def hung(self) -> Symptom | None:
        """Return a job whose pass takes longer than the watchdog allows."""
        now = self._clock()
        # A copy: passes begin and end in other threads.
        for job, began in list(self._began.items()):
            if now - began > self._watchdog.total_seconds():
                return Symptom(job=job, seconds=now - began)
        return None

    def idle(self, job: str, *, every: timedelta) -> Symptom | None:
        """Return a job that should run so often, and has not begun for longer than is allowed."""
        if job in self._began or job in self._waiting:
            return None
        seconds = self._clock() - self._ended.get(job, self._started)
        is_idle = seconds > (self._watchdog + every).total_seconds()
        return Symptom(job=job, seconds=seconds) if is_idle else None

    def has_failed(self, job: str) -> bool:
        """Whether the last pass of a vital job has failed."""
        return job in self._failed

    def since_success(self, job: str) -> float | None:
        """Return the seconds since a job's last success; None: it had none."""
        succeeded = self._succeeded.get(job)
        return None if succeeded is None else self._clock() - succeeded[0]

    def last_successes(self) -> Mapping[str, float]:
        """Return the Unix time of each job's last success."""
        return {job: at for job, (_, at) in list(self._succeeded.items())}

    def failing(self) -> Symptom | None:
        """Return a job without a successful pass for longer than the limit.

        The time counts from its first failed pass to its last one: a pass in progress may succeed,
        and the watchdog limits its duration.
        """
        if self._failure_limit == NEVER:
            return None
        for job, (first, last) in list(self._failing.items()):
            if last - first > self._failure_limit.total_seconds():
                return Symptom(job=job, seconds=last - first)
        return None
