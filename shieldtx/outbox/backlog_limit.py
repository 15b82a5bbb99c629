"""The backlog limit of a topic, applied by the write side."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqlalchemy import Connection

from shieldtx.domain.event_types import EventType, OnBacklog
from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.sampler import Sampler
from shieldtx.errors import BacklogExceeded
from shieldtx.ports.outbox import BacklogCounter

log = logging.getLogger(__name__)

SAMPLE_EVERY: Final = 1.0
"""Minimum seconds between two samples of a topic's backlog."""

_TopicLimit: TypeAlias = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sample:
    count: int
    sampler: Sampler
    """Schedules the next sample."""


class BacklogLimiter:
    """Refuses events of a topic with too large a backlog, or warns, by samples some seconds old.

    A sample is taken on the connection that adds an event, in the open transaction. An asynchronous
    session cannot use its connection here, so the last sample counts. If that sample is due for
    renewal, the event is admitted, and the INSERT takes a sample for later events.
    """

    def __init__(
        self, counter: BacklogCounter, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counter = counter
        self._clock = clock
        self._samples: dict[_TopicLimit, _Sample] = {}
        self._wanted: set[_TopicLimit] = set()
        self._lines = LogThrottle(clock=clock)

    def admit(self, declared: EventType, connection: Connection | None) -> None:
        """Admit an event of this type; raises BacklogExceeded where it refuses more."""
        limit = declared.backlog_limit
        if limit is None or declared.on_backlog is OnBacklog.IGNORE:
            return
        topic_limit = (declared.topic, limit)
        sample = self._samples.get(topic_limit)
        if sample is None or sample.sampler.is_due():
            if connection is None:
                self._wanted.add(topic_limit)
                return
            sample = self._sample(connection, topic_limit)
        if sample.count >= limit:
            self._object(declared, sample.count, limit)

    def sample_for_others(self, connection: Connection) -> None:
        """Take the samples that sessions without a connection needed."""
        while (topic_limit := self._next_wanted()) is not None:
            self._sample(connection, topic_limit)

    def _next_wanted(self) -> _TopicLimit | None:
        try:
            return self._wanted.pop()
        except KeyError:
            # Empty, or another thread has taken the last one.
            return None

    def _sample(self, connection: Connection, topic_limit: _TopicLimit) -> _Sample:
        topic, limit = topic_limit
        sample = self._samples.get(topic_limit)
        if sample is not None:
            # Meanwhile, other threads use the previous sample.
            sample.sampler.postpone()
        began = self._clock()
        count = self._counter.backlog(connection, topic, upto=limit)
        took = self._clock() - began
        sampler = Sampler(every=SAMPLE_EVERY, clock=self._clock)
        sampler.record(took=took)
        self._samples[topic_limit] = sample = _Sample(count=count, sampler=sampler)
        return sample

    def _object(self, declared: EventType, backlog: int, limit: int) -> None:
        is_refused = declared.on_backlog is OnBacklog.REFUSE
        if self._lines.admits(declared.topic):
            log.warning(
                "backlog is at its limit",
                extra={
                    "action": "backlog_at_limit",
                    "topic": declared.topic,
                    "count": backlog,
                    "limit": limit,
                    "on_backlog": str(declared.on_backlog),
                },
            )
        if is_refused:
            raise BacklogExceeded(declared.topic, backlog, limit)
