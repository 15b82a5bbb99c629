"""The schedule of samples that take time, such as a count in a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 20
"""Samples take at most one part in `SHARE` of the time."""


class Sampler:
    """Schedules samples: `every` seconds after the last one, or later if the last one was slow."""

    def __init__(self, *, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Make the first sample due at once."""
        self._every = every
        self._clock = clock
        self._taken_at: float | None = None
        self._took = 0.0

    def is_due(self, *, every: float | None = None) -> bool:
        """Whether the next sample is due; `every` overrides the usual interval."""
        if self._taken_at is None:
            return True
        pause = max(self._every if every is None else every, SHARE * self._took)
        return self._clock() >= self._taken_at + pause

    def postpone(self) -> None:
        """Make no sample due for an interval: one is being taken."""
        self._taken_at, self._took = self._clock(), 0.0

    def record(self, *, took: float) -> None:
        """Record that a sample has ended, and how many seconds it took."""
        self._taken_at, self._took = self._clock(), took
