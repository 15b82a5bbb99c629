"""Health of a worker: whether its passes end in time, and whether any of them succeeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
    ) -> None:
        """Allow a pass `watchdog`, and a job `failure_limit` without success (NEVER: no limit)."""
        self._clock = clock
        self._watchdog = watchdog
        self._failure_limit = failure_limit
        self._began: dict[str, float] = {}
        self._failing: dict[str, tuple[float, float]] = {}
        """End times of each job's first and last failed pass since its last successful pass."""

    @contextmanager
    def watching(self, job: str) -> Iterator[None]:
        """Count the block as one pass of a job, or as a part of it."""
        self._began[job] = self._clock()
        try:
            yield
        finally:
            self._began.pop(job, None)

    def succeeded(self, job: str) -> None:
        """Record a successful pass."""
        self._failing.pop(job, None)

    def failed(self, job: str, error: Exception) -> None:
        """Record a failed pass; an unreachable broker does not count: a restart does not help."""
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
