"""Events of the inbox that are due: retries, and events that another event or worker blocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Envelope
from shieldtx.ports.inbox import InboxStore


class DueEvents:
    """Polls the inbox for due events, and omits polls that would probably find none.

    Each poll costs a statement. A pass that has applied all its events, or has left records on the
    topics, permits the omission of the next poll. Meanwhile only retries of earlier passes can
    become due, and they may wait for `interval`. So a poll is omitted only with a permission, and
    only within `interval` after a poll that found nothing.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        breaker: Breaker,
        interval: timedelta,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._store = store
        self._breaker = breaker
        self._interval = interval.total_seconds()
        self._clock = clock
        self._is_optional = False
        self._needed_at = clock()

    def permit_leaving_out(self) -> None:
        """Permit the omission of the next poll; the permission covers this one poll."""
        self._is_optional = True

    def poll(self, *, limit: int) -> Sequence[Envelope]:
        """Return up to `limit` due events of running handlers; none where the poll is omitted."""
        now = self._clock()
        is_optional, self._is_optional = self._is_optional, False
        if is_optional and now < self._needed_at:
            return []
        handled = self._breaker.running(self._group.handled())
        found = self._store.due(self._group.name, handled=handled, limit=limit)
        self._needed_at = now if found else now + self._interval
        return found
