"""Reports events of types without a handler on topics that a group reads; they are passed over."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from shieldtx.domain.events import Envelope
from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.states import TxKind

log = logging.getLogger(__name__)

LOG_EVERY = 3600.0
"""Seconds between two lines about a type."""

MOST_TYPES = 20
"""The maximum number of types that are counted one by one; all others count together."""

_OTHERS = "(other types)"


class PassedOverEvents:
    """Logs at once, and then once an hour for each type, how many events a group has passed over.

    The type may be misspelt in `handles`. A topic with several types may well have some that the
    group leaves out, so further lines are rare.
    """

    def __init__(self, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._lines = LogThrottle(every=LOG_EVERY, clock=clock)
        self._counts: Counter[tuple[str, str, TxKind]] = Counter()
        self._known: set[tuple[str, str, TxKind]] = set()

    def add(self, envelope: Envelope) -> None:
        """Count an event that is passed over."""
        subject = (envelope.type, envelope.topic, envelope.kind)
        if subject not in self._known:
            if len(self._known) >= MOST_TYPES:
                subject = (_OTHERS, "", envelope.kind)
            self._known.add(subject)
        self._counts[subject] += 1

    def log(self) -> None:
        """Log the counts of the types whose line is due."""
        if not self._counts:
            return
        for subject in list(self._counts):
            if not self._lines.admits(subject):
                continue
            event_type, topic, kind = subject
            log.warning(
                "events without handler are passed over",
                extra={
                    "action": "events_passed_over",
                    "group": self._group,
                    "event_type": event_type,
                    "topic": topic,
                    "kind": str(kind),
                    "count": self._counts.pop(subject),
                    "advice": "If the group should handle them, declare a handler",
                },
            )
