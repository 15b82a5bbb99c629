"""Throttling of repeated log lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures of one subject, without a success between them."""

    count: int
    seconds: float


class FailureThrottle:
    """Counts the failures of subjects, and admits one line a minute about each kind of failure.

    Safe for any number of threads.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines = LogThrottle(clock=clock)
        self._failures: dict[Hashable, dict[Hashable, tuple[float, int]]] = {}
        """By subject and kind: when the first of them failed, and how many have."""
        self._lock = threading.Lock()

    def failed(self, subject: Hashable = None, kind: Hashable = None) -> Streak | None:
        """Count a failure; return those of its kind if the caller may log a line about them now."""
        with self._lock:
            kinds = self._failures.setdefault(subject, {})
            began, count = kinds.get(kind, (self._clock(), 0))
            kinds[kind] = began, count + 1
        if not self._lines.admits((subject, kind)):
            return None
        return Streak(count + 1, self._clock() - began)

    def ended(self, subject: Hashable = None) -> Streak | None:
        """Forget the failures of a subject that has succeeded; return them, None without any."""
        with self._lock:
            kinds = self._failures.pop(subject, None)
        if not kinds:
            return None
        for kind in kinds:
            self._lines.reset((subject, kind))
        began = min(began for began, _ in kinds.values())
        return Streak(sum(count for _, count in kinds.values()), self._clock() - began)
