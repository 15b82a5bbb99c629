"""The consumer adapter: reads records, brings them into the inbox, gives each event its turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from shieldtx.consumer.backpressure import PendingEvents
from shieldtx.consumer.batch_executor import Batches
from shieldtx.consumer.event_processor import Inbox, Verdict
from shieldtx.consumer.fetcher import Intake
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.unhandled import UnhandledEvents
from shieldtx.domain.events import Envelope, physical_topic
from shieldtx.ports.broker import BATCH_BYTES, TopicPartition
from shieldtx.ports.inbox import InboxStore, Receipt, ReceivedInPart

LONGEST_PASS = 60.0
"""Seconds after which a pass begins nothing more: what is left waits in the inbox for the next.

A slow handler is no reason to take the worker for hung, or to leave the consumer group.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """How a consumer works."""

    batch_size: int = 500
    batch_bytes: int = BATCH_BYTES
    """A batch ends with the record that brings it to so many bytes, however large that one is."""
    poll_timeout: timedelta = timedelta(milliseconds=200)
    """How long a pass waits for records; due retries wait no longer than this."""
    pending_limit: int = 5000
    """A partition with so many unfinished events in the inbox is not polled until it has half."""
    topic_prefix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerPass:
    """What one pass did."""

    records: int = 0
    fresh: int = 0
    duplicates: int = 0
    parked: int = 0
    ignored: int = 0
    """Events of types that the group has no handler for."""
    paused: int = 0
    """Partitions that are not polled, because too many of their events are unfinished."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)

    @property
    def more(self) -> bool:
        """Whether there was work, so that the next pass should follow at once."""
        return self.records > 0 or any(
            count for verdict, count in self.verdicts.items() if verdict is not Verdict.HELD
        )


class Consumer:
    """One worker of a consumer group; any number of them share the group's inbox.

    A record's way: decode, dedupe (the insert into the inbox), hold back while its key waits, count
    the attempt, commit of its offset; then, in a batch with its neighbours, the interceptors of the
    group and the handler. What cannot share a batch, waits for its key or has failed goes on alone,
    from the inbox, and at the end is given up. So no event holds its partition; only too many that
    are unfinished do, see `PendingEvents`.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        intake: Intake,
        store: InboxStore,
        inbox: Inbox,
        settings: ConsumerSettings,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._intake = intake
        self._store = store
        self._inbox = inbox
        self._settings = settings
        self._stopping = stopping
        self._clock = clock
        self._pending = PendingEvents(
            limit=settings.pending_limit, count=self._count_pending, clock=clock
        )
        self._unhandled = UnhandledEvents(group=group, store=store, clock=clock)
        self._held: frozenset[TopicPartition] = frozenset()
        self._may_skip_a_look = False
        self._next_look = clock()
        self._pass_ends = clock() + LONGEST_PASS
        self._batches = Batches(
            group=group, store=store, inbox=inbox, is_time_up=self._is_time_up, clock=clock
        )

    def run_once(self) -> ConsumerPass:
        """Make one pass: first what is due in the inbox, then what is new on the topics."""
        self._pass_ends = self._clock() + LONGEST_PASS
        limit = self._settings.batch_size
        due = self._work_what_is_due(limit)
        # With work at hand there is no reason to wait for more.
        busy = sum(due.values()) > due[Verdict.HELD]
        timeout = 0.0 if busy else self._settings.poll_timeout.total_seconds()
        self._pending.look()
        self._unhandled.look()
        if self._pending.held != self._held:
            self._intake.hold(self._pending.held)
            self._held = self._pending.held
        batch = self._intake.take(
            timeout=timeout, limit=limit, limit_bytes=self._settings.batch_bytes
        )
        self._may_skip_a_look = False
        if not batch.records:
            return ConsumerPass(paused=len(self._held), verdicts=due)
        try:
            receipt = self._store.receive(self._group.name, batch.arrivals, batch.parked)
        except ReceivedInPart as part:
            # Read again, what is received of it is a duplicate.
            self._intake.put_back(batch)
            self._apply(part.receipt)
            raise part.error from None
        except BaseException:
            self._intake.put_back(batch)
            raise
        self._pending.received(batch.records)
        # The rows are committed, so the partitions can go on whatever becomes of the handlers.
        self._intake.done(batch)
        due.update(self._apply(receipt))
        # Nobody has to wait then but for a time, and the one after the next pass is soon enough.
        read, fresh = len(batch.records), len(receipt.fresh)
        self._may_skip_a_look = read == limit or due[Verdict.APPLIED] == due.total() == fresh
        return ConsumerPass(
            records=read,
            fresh=fresh,
            duplicates=receipt.duplicates,
            parked=receipt.parked,
            ignored=batch.ignored,
            paused=len(self._held),
            verdicts=due,
        )

    def _apply(self, receipt: Receipt) -> Counter[Verdict]:
        """Work what is received: what is started together first."""
        verdicts = self._batches.work(receipt.started)
        if len(receipt.started) < len(receipt.fresh):
            started = {(a.envelope.id, a.envelope.source) for a in receipt.started}
            verdicts.update(self._work(e for e in receipt.fresh if (e.id, e.source) not in started))
        return verdicts

    def has_caught_up(self) -> bool:
        """Whether the passes have received all that is on the topics, for this member of the group.

        What waits in the inbox for its time does not count, nor do paused partitions. Raises
        BrokerUnavailable.
        """
        return self._intake.has_caught_up()

    def close(self) -> None:
        """Leave the group."""
        self._intake.close()

    def _work_what_is_due(self, limit: int) -> Counter[Verdict]:
        """Look at the inbox; while records come that wait for nobody, not more often than else."""
        now = self._clock()
        if self._may_skip_a_look and now < self._next_look:
            return Counter()
        verdicts = self._work(
            self._store.due(self._group.name, handled=self._group.handled(), limit=limit)
        )
        self._next_look = now
        if not verdicts:
            self._next_look += self._settings.poll_timeout.total_seconds()
        return verdicts

    def _count_pending(self) -> Mapping[TopicPartition, int]:
        prefix = self._settings.topic_prefix
        pending = self._store.pending(self._group.name, handled=self._group.handled())
        return {
            (physical_topic(prefix, topic, kind), partition): count
            for (topic, kind, partition), count in pending.items()
        }

    def _is_time_up(self) -> bool:
        return self._stopping() or self._clock() >= self._pass_ends

    def _work(self, envelopes: Iterable[Envelope]) -> Counter[Verdict]:
        verdicts: Counter[Verdict] = Counter()
        for envelope in envelopes:
            if self._is_time_up():
                break
            verdicts[self._inbox.work(envelope)] += 1
        return verdicts
