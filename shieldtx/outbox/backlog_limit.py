"""How many events of a topic wait to be sent, as the write side knows it, and when it is enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from shieldtx.domain.event_types import EventType, OnBacklog
from shieldtx.errors import BacklogExceeded
from shieldtx.ports.outbox import BacklogCounter

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the outbox for a topic, at least."""

SHARE: Final = 20
"""Looks take one part in so many of the process's time, at most."""

LOG_EVERY: Final = 60.0
"""Seconds between two lines about the same topic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    count: int
    until: float
    """When to look again, by the process's clock."""


class BacklogLimiter:
    """Refuses events of a topic with too large a backlog, or warns, by looks some seconds old.

    A look is made on the connection of whoever adds an event, in the open transaction. An
    asynchronous session has none at hand: it goes by the last look, and without one of the last
    second its event is let through, and the INSERT looks for those that follow.
    """

    def __init__(
        self, counter: BacklogCounter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        self._looks: dict[tuple[str, int], _Look] = {}
        self._wanted: set[tuple[str, int]] = set()
        self._next_line: dict[str, float] = {}

    def admit(self, declared: EventType, connection: Connection | None) -> None:
        """Let an event of this type in; raises BacklogExceeded where that is to be refused."""
        limit = declared.backlog_limit
        if limit is None or declared.on_backlog is OnBacklog.IGNORE:
            return
        place = (declared.topic, limit)
        look = self._looks.get(place)
        if look is None or self._clock() >= look.until:
            if connection is None:
                self._wanted.add(place)
                return
            look = self._look(connection, place)
        if look.count >= limit:
            self._object(declared, look.count, limit)

    def look_for_others(self, connection: Connection) -> None:
        """Make the looks that somebody without a connection was in need of."""
        while self._wanted:
            self._look(connection, self._wanted.pop())

    def _look(self, connection: Connection, place: tuple[str, int]) -> _Look:
        topic, limit = place
        began = self._clock()
        if place in self._looks:
            # Meanwhile other threads go by the one before.
            self._looks[place] = _Look(count=self._looks[place].count, until=began + LOOK_EVERY)
        count = self._counter.backlog(connection, topic, upto=limit)
        now = self._clock()
        pause = max(LOOK_EVERY, SHARE * (now - began))
        look = self._looks[place] = _Look(count=count, until=now + pause)
        return look

    def _object(self, declared: EventType, backlog: int, limit: int) -> None:
        is_refused = declared.on_backlog is OnBacklog.REFUSE
        now = self._clock()
        if now >= self._next_line.get(declared.topic, now):
            self._next_line[declared.topic] = now + LOG_EVERY
            log.warning(
                "topic %s: %d events or more wait to be sent, the limit is %d; further ones are %s",
                declared.topic,
                backlog,
                limit,
                "refused" if is_refused else "written all the same",
            )
        if is_refused:
            raise BacklogExceeded(declared.topic, backlog, limit)
