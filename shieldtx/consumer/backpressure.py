"""The partitions whose events pile up in the inbox, and which are therefore not polled."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final

from shieldtx.ports.broker import ReceivedRecord, TopicPartition

log = logging.getLogger(__name__)

LOW: Final = 1 / 2
"""The part of the limit to which a partition has to drain before it is polled again."""

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the inbox, when none is needed sooner."""

SHARE: Final = 20
"""Looks that nothing asks for take one part in so many of the consumer's time, at most."""


_PLACE_OF: Final = itemgetter(0, 1)
"""The topic and the partition of a record."""


def held_after(
    held: frozenset[TopicPartition], pending: Mapping[TopicPartition, int], *, limit: int
) -> frozenset[TopicPartition]:
    """Return the partitions to hold, of those `held` and of those with `pending` events.

    One is held from the limit on, until it has no more than `LOW` of it.
    """
    return frozenset(
        place
        for place, count in pending.items()
        if count >= limit or (place in held and count > limit * LOW)
    )


class PendingEvents:
    """Keeps an upper bound of what each partition has open in the inbox, and looks when it must.

    Between two looks what was received is added, and nothing taken off: so no look is needed while
    the bound is below the limit, and none is late.
    """

    def __init__(
        self,
        *,
        limit: int,
        count: Callable[[], Mapping[TopicPartition, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count with `count`, which asks the inbox; at once when asked the first time."""
        self._limit = limit
        self._count = count
        self._clock = clock
        self._bound: Counter[TopicPartition] = Counter()
        self._is_over = True
        self._next_look = clock()
        self._held: frozenset[TopicPartition] = frozenset()

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions that are not to be polled, as of the last look."""
        return self._held

    def received(self, records: Iterable[ReceivedRecord]) -> None:
        """Note what may be in the inbox now: some of these are duplicates, or of no concern."""
        added = Counter(map(_PLACE_OF, records))
        self._bound += added
        self._is_over = self._is_over or any(self._bound[p] >= self._limit for p in added)

    def look(self) -> None:
        """Look at the inbox if need be."""
        now = self._clock()
        if now < self._next_look and not self._is_over:
            return
        pending = self._count()
        took = self._clock() - now
        self._bound = Counter(pending)
        before, self._held = self._held, held_after(self._held, pending, limit=self._limit)
        # What is held does not grow.
        self._is_over = False
        self._next_look = now + max(LOOK_EVERY, SHARE * took)
        for topic, partition in sorted(self._held - before):
            log.warning(
                "%s[%d] is paused: %d of its events are unfinished in the inbox, the limit is %d",
                topic,
                partition,
                pending[topic, partition],
                self._limit,
            )
        for topic, partition in sorted(before - self._held):
            log.info("%s[%d] is polled again", topic, partition)
