"""The pace of a relay: smaller batches and pauses while the broker asks for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shieldtx.ports.broker import Backpressure

log = logging.getLogger(__name__)

STEPS: Final = 20
"""So many batches without pressure lead from the smallest to the largest."""

LOG_EVERY: Final = 60.0
"""Seconds between two lines about a relay that is slowed."""


def next_size(size: int, *, sent: int, most: int, is_pressed: bool) -> int:
    """Return how many events the next batch may have, after one of `sent` events.

    Additive increase, multiplicative decrease, as TCP's congestion avoidance (RFC 5681): half of
    what was too much, at least 1; otherwise a step more, at most `most`.
    """
    if is_pressed:
        return max(1, min(size, sent) // 2)
    return min(most, size + max(1, most // STEPS))


class Pace:
    """Keeps how much a relay sends at a time, and until when it sends nothing."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._size = most
        self._paused_until = 0.0
        self._is_throttled = False
        self._pauses = 0
        self._next_line = 0.0

    @property
    def size(self) -> int:
        """How many events the next batch may have."""
        return self._size

    @property
    def pause(self) -> float:
        """For how many seconds nothing is to be sent."""
        return max(0.0, self._paused_until - self._clock()) if self._is_throttled else 0.0

    @property
    def is_throttled(self) -> bool:
        """Whether the broker may ask for another pause: it has, and full speed is not tried yet."""
        return self._is_throttled

    def note(self, pressure: Backpressure, *, sent: int) -> None:
        """Learn how hard a batch of `sent` events has pressed the broker."""
        if not pressure and self._size == self._most and not self._is_throttled:
            return
        self._size = next_size(self._size, sent=sent, most=self._most, is_pressed=bool(pressure))
        if pressure.pause:
            # The client's buffers are empty again by now: they need no pause.
            self._is_throttled = True
            self._paused_until = self._clock() + pressure.pause
            self._pauses += 1
        if pressure:
            self._tell(pressure)
        elif self._size == self._most:
            log.info("the relay is at its full speed again, after %d pauses", self._pauses)
            self._is_throttled = False
            self._pauses = 0
            self._next_line = 0.0

    def _tell(self, pressure: Backpressure) -> None:
        now = self._clock()
        if now < self._next_line:
            return
        self._next_line = now + LOG_EVERY
        log.warning(
            "the relay is slowed: %s; it sends up to %d of %d events at a time",
            f"the broker throttles it, for {pressure.pause:.3g} s now"
            if pressure.pause
            else "its client's buffers were full",
            self._size,
            self._most,
        )
