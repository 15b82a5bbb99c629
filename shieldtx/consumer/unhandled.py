"""Events in the inbox that no handler of the worker is for: they stay, and the log names them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.ports.inbox import InboxStore

log = logging.getLogger(__name__)

LOOK_EVERY = 60.0
"""Seconds between two looks at the inbox."""

MOST = 10_000
"""Rows that are counted; where there are more, the log says so."""


class UnhandledEvents:
    """Logs once a minute, by type, which unfinished events of a group the worker cannot handle.

    An earlier release had a handler for them, or another service uses the same group's name in the
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
        self._next_look = clock()

    def look(self) -> None:
        """Look at the inbox if it is time to."""
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + LOOK_EVERY
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
