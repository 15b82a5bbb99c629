"""What relays and consumers log about an unavailable broker."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

from shieldtx.domain.log_throttle import FailureThrottle

log = logging.getLogger(__name__)

_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


class BrokerOutage:
    """Logs an outage at first, then once a minute for each reason, and its end."""

    def __init__(
        self,
        *,
        relay: str | None = None,
        group: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Log under the name of a relay or of a consumer group."""
        self._relay = relay
        self._group = group
        self._failures = FailureThrottle(clock=clock)

    def goes_on(self, reason: str, *, count: int | None = None) -> None:
        """Log why the broker is unavailable, and how many events are released."""
        # Durations and counts in a text do not make another reason.
        outage = self._failures.failed(kind=_NUMBER.sub("", reason))
        if outage is None:
            return
        log.warning(
            "broker is unavailable",
            extra={
                "action": "broker_unavailable",
                "relay": self._relay,
                "group": self._group,
                "count": count,
                "duration_s": round(outage.seconds),
                "reason": reason,
            },
        )

    def ended(self) -> None:
        """Log that the broker is available, if it was not."""
        outage = self._failures.ended()
        if outage is None:
            return
        log.info(
            "broker is available again",
            extra={
                "action": "broker_available",
                "relay": self._relay,
                "group": self._group,
                "duration_s": round(outage.seconds),
            },
        )
