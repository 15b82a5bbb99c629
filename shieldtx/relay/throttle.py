"""What slows a relay down: a broker that is unavailable, and a broker that asks for less."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure
from shieldtx.relay.outcome import BatchOutcome

log = logging.getLogger(__name__)

STEPS: Final = 20
"""The batches without pressure that lead from the smallest size to the largest."""


class CircuitBreaker:
    """Stops the sending while the broker is unavailable: for a longer time after each failure."""

    def __init__(self, pause: RetryPolicy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether nothing is to be sent yet."""
        return self._clock() < self._open_until

    @property
    def is_probing(self) -> bool:
        """Whether a single event has to find out first if the broker is available again."""
        return self._failures > 0

    def record(self, outcome: BatchOutcome) -> str:
        """Learn from a batch; return why the broker is unavailable, "" when it is available."""
        if not outcome.outage_reasons:
            if outcome.broker_responded:
                self._failures = 0
            return ""
        self._failures += 1
        pause = self._pause.delay_after(min(self._failures, self._pause.max_attempts - 1))
        self._open_until = self._clock() + (pause or self._pause.longest).total_seconds()
        reason = outcome.outage_reasons[0]
        log.warning(
            "broker unavailable, events released",
            extra={
                "action": "broker_unavailable",
                "count": len(outcome.outage_reasons),
                "reason": reason,
            },
        )
        return reason


def next_size(size: int, *, sent: int, most: int, is_pressed: bool) -> int:
    """Return how many events the next batch may have, after one of `sent` events.

    Additive increase, multiplicative decrease, as TCP's congestion avoidance (RFC 5681): half of
    the batch that was too large, at least 1; otherwise a step more, at most `most`.
    """
    if is_pressed:
        return max(1, min(size, sent) // 2)
    return min(most, size + max(1, most // STEPS))


class AdaptiveBatchSize:
    """How many events a relay sends at a time, and until when the broker wants none."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._size = most
        self._paused_until = 0.0
        self._is_throttled = False
        self._pauses = 0
        self._lines = LogThrottle(clock=clock)

    @property
    def size(self) -> int:
        """How many events the next batch may have."""
        return self._size

    @property
    def pause(self) -> float:
        """The seconds for which nothing is to be sent."""
        return max(0.0, self._paused_until - self._clock()) if self._is_throttled else 0.0

    @property
    def is_throttled(self) -> bool:
        """Whether the broker has asked for a pause since the relay was last at its full speed."""
        return self._is_throttled

    def record(self, pressure: Backpressure, *, sent: int) -> None:
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
            self._log(pressure)
        elif self._size == self._most:
            log.info(
                "relay is at full speed again",
                extra={"action": "relay_at_full_speed", "count": self._pauses},
            )
            self._is_throttled = False
            self._pauses = 0
            self._lines.reset()

    def _log(self, pressure: Backpressure) -> None:
        if not self._lines.admits():
            return
        log.warning(
            "relay is slowed",
            extra={
                "action": "relay_slowed",
                "reason": "throttled by the broker" if pressure.pause else "client buffers full",
                "delay_s": float(f"{pressure.pause:.3g}"),
                "batch_size": self._size,
                "limit": self._most,
            },
        )
