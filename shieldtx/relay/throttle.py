"""Slows a relay down when a broker is unavailable, or asks for fewer records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from shieldtx.domain.broker_outage import BrokerOutage
from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.retry import RetryPolicy
from shieldtx.ports.broker import Backpressure
from shieldtx.relay.outcome import BatchOutcome

log = logging.getLogger(__name__)

STEPS: Final = 20
"""The number of batches without overload from the smallest size to the largest."""


class CircuitBreaker:
    """Stops sending while the broker is unavailable: longer after each failure."""

    def __init__(
        self,
        pause: RetryPolicy,
        *,
        relay: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._outage = BrokerOutage(relay=relay, clock=clock)
        self._failures = 0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether sending is stopped."""
        return self._clock() < self._open_until

    @property
    def is_probing(self) -> bool:
        """Whether a single event must test first if the broker is available again."""
        return self._failures > 0

    def record(self, outcome: BatchOutcome) -> str:
        """Learn from a batch; return why the broker is unavailable, "" when it is available."""
        if not outcome.outage_reasons:
            if outcome.broker_responded:
                self._failures = 0
                self._outage.ended()
            return ""
        self._failures += 1
        pause = self._pause.delay_after(min(self._failures, self._pause.max_attempts - 1))
        self._open_until = self._clock() + (pause or self._pause.longest).total_seconds()
        reason = outcome.outage_reasons[0]
        # The probes after the first failure are of one event each.
        is_probe = self._failures > 1
        self._outage.goes_on(reason, count=None if is_probe else len(outcome.outage_reasons))
        return reason


def next_size(size: int, *, sent: int, most: int, is_pressed: bool) -> int:
    """Return the size of the next batch, after a batch of `sent` events.

    Additive increase, multiplicative decrease, as TCP's congestion avoidance (RFC 5681). After an
    overload: half of the batch that was too large, at least 1. Otherwise: a step more, at most
    `most`.
    """
    if is_pressed:
        return max(1, min(size, sent) // 2)
    return min(most, size + max(1, most // STEPS))


class AdaptiveBatchSize:
    """The number of events that a relay sends at a time, and the pause that the broker asks for."""

    def __init__(
        self, most: int, *, relay: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._relay = relay
        self._clock = clock
        self._size = most
        self._paused_until = 0.0
        self._is_throttled = False
        self._pauses = 0
        self._lines = LogThrottle(clock=clock)

    @property
    def size(self) -> int:
        """The maximum number of events in the next batch."""
        return self._size

    @property
    def pause(self) -> float:
        """Seconds for which nothing must be sent."""
        return max(0.0, self._paused_until - self._clock()) if self._is_throttled else 0.0

    @property
    def is_throttled(self) -> bool:
        """Whether the broker has asked for a pause since the relay last ran at full speed."""
        return self._is_throttled

    def record(self, pressure: Backpressure, *, sent: int) -> None:
        """Learn how much a batch of `sent` events has overloaded the broker."""
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
                extra={
                    "action": "relay_at_full_speed",
                    "relay": self._relay,
                    "count": self._pauses,
                },
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
                "relay": self._relay,
                "reason": "throttled by the broker" if pressure.pause else "client buffers full",
                "delay_s": float(f"{pressure.pause:.3g}"),
                "batch_size": self._size,
                "limit": self._most,
            },
        )
