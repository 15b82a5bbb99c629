"""Backpressure: pauses partitions whose events accumulate in the inbox."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Final

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.sampler import Sampler
from shieldtx.ports.broker import ReceivedRecord, TopicPartition

log = logging.getLogger(__name__)

LOW: Final = 1 / 2
"""The part of the limit to which a partition must drain before it is polled again."""

SAMPLE_EVERY: Final = 1.0
"""Seconds between two samples, when none is needed sooner."""

_PARTITION_OF: Final = itemgetter(0, 1)
"""The topic and the partition of a record."""


def paused_after(
    paused: frozenset[TopicPartition], pending: Mapping[TopicPartition, int], *, limit: int
) -> frozenset[TopicPartition]:
    """Return the partitions to pause, from those `paused` and the counts of `pending` events.

    A partition is paused from the limit on, until it has no more than `LOW` of the limit.
    """
    return frozenset(
        partition
        for partition, count in pending.items()
        if count >= limit or (partition in paused and count > limit * LOW)
    )


class PartitionBackpressure:
    """Keeps an upper bound of each partition's unfinished events in the inbox, and pauses by it.

    Between two samples, received events are added to the bound, and finished events are not
    subtracted. So no sample is needed while the bound is below the limit, and no pause comes late.
    """

    def __init__(
        self,
        *,
        group: str,
        limit: int,
        count: Callable[[], Mapping[TopicPartition, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use `count` to sample the inbox; the first call of `sample` takes a sample."""
        self._group = group
        self._limit = limit
        self._count = count
        self._clock = clock
        self._sampler = Sampler(every=SAMPLE_EVERY, clock=clock)
        self._bound: Counter[TopicPartition] = Counter()
        self._is_needed = True
        self._paused: frozenset[TopicPartition] = frozenset()
        self._lines = LogThrottle(clock=clock)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that must not be polled, as of the last sample."""
        return self._paused

    def received(self, records: Iterable[ReceivedRecord]) -> None:
        """Add records to the bound: some may be duplicates, or events without a handler."""
        added = Counter(map(_PARTITION_OF, records))
        self._bound += added
        self._is_needed = self._is_needed or any(self._bound[p] >= self._limit for p in added)

    def sample_paused(self) -> None:
        """Count them now if a partition is paused."""
        if self._paused:
            self._is_needed = True
            self.sample()

    def sample(self) -> None:
        """Count the unfinished events if a sample is needed, or due."""
        if not (self._is_needed or self._sampler.is_due()):
            return
        began = self._clock()
        pending = self._count()
        self._sampler.record(took=self._clock() - began)
        self._bound = Counter(pending)
        before = self._paused
        self._paused = paused_after(before, pending, limit=self._limit)
        # A paused partition does not grow.
        self._is_needed = False
        self._log(resumed=before - self._paused, pending=pending)

    def _log(
        self, *, resumed: AbstractSet[TopicPartition], pending: Mapping[TopicPartition, int]
    ) -> None:
        """Log the paused partitions, once a minute while they are paused, and the resumed ones."""
        for topic, partition in sorted(self._paused):
            if not self._lines.admits((topic, partition)):
                continue
            log.warning(
                "partition is paused",
                extra={
                    "action": "partition_paused",
                    "group": self._group,
                    "topic": topic,
                    "partition": partition,
                    "count": pending[topic, partition],
                    "limit": self._limit,
                },
            )
        for topic, partition in sorted(resumed):
            self._lines.reset((topic, partition))
            log.info(
                "partition is polled again",
                extra={
                    "action": "partition_resumed",
                    "group": self._group,
                    "topic": topic,
                    "partition": partition,
                },
            )
