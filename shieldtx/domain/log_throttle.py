"""Throttling of repeated log lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

LOG_EVERY: Final = 60.0
"""Seconds between two lines about the same subject."""


class LogThrottle:
    """Admits one line about a subject in `every` seconds. Safe for any number of threads."""

    def __init__(
        self, *, every: float = LOG_EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every = every
        self._clock = clock
        self._next: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def admits(self, subject: Hashable = None) -> bool:
        """Whether the caller may log a line about this subject now; if true, the caller logs it."""
        now = self._clock()
        with self._lock:
            if now < self._next.get(subject, now):
                return False
            self._next[subject] = now + self._every
            return True

    def reset(self, subject: Hashable = None) -> None:
        """Admit the next line about this subject at once."""
        with self._lock:
            self._next.pop(subject, None)
