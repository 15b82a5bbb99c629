"""Reports events in the inbox that have no handler in the worker; they stay there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.ports.inbox import InboxStore

log = logging.getLogger(__name__)

SAMPLE_EVERY = 60.0
"""Seconds between two samples of the inbox."""

MOST = 10_000
"""The maximum number of counted rows; the log reports when there are more."""


class UnhandledEvents:
    """Logs once a minute, by type, which unfinished events of a group the worker cannot handle.

    An earlier release had a handler for them, or another service uses the same group name in the
    same tables. They wait until a worker of the group has a handler for them.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._store = store
        self._clock = clock
        self._next_sample = clock()

    def sample(self) -> None:
        """Sample the inbox if a sample is due."""
        if self._clock() < self._next_sample:
            return
        self._next_sample = self._clock() + SAMPLE_EVERY
        name = self._group.name
        found = self._store.unhandled(name, handled=self._group.handled(), limit=MOST)
        is_truncated = sum(found.values()) >= MOST
        for (event_type, kind), rows in sorted(found.items()):
            log.warning(
                "received events wait for a handler",
                extra={
                    "action": "events_unhandled",
                    "group": name,
                    "event_type": event_type,
                    "kind": str(kind),
                    "count": rows,
                    "at_least": is_truncated,
                    "advice": "Declare a handler for them again",
                },
            )
