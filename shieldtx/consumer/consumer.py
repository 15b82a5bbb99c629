"""The consumer adapter: fetches records, receives them into the inbox, processes each event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shieldtx.consumer.backpressure import PartitionBackpressure
from shieldtx.consumer.batch_executor import BatchExecutor
from shieldtx.consumer.due_events import DueEvents
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.lanes import Lane, OneLane, Outcomes, process_in_lanes
from shieldtx.consumer.parked_log import log_parked
from shieldtx.consumer.probes import Probes
from shieldtx.consumer.unhandled import UnhandledEvents
from shieldtx.domain.events import Envelope, physical_topic
from shieldtx.ports.broker import BATCH_BYTES, TopicPartition
from shieldtx.ports.consumer import FetchedBatch, RecordFetcher
from shieldtx.ports.inbox import AttemptOutcome, InboxStore, Receipt, ReceivedInPart
from shieldtx.ports.lanes import Lanes

LONGEST_PASS = 60.0
"""Seconds after which a pass begins nothing more: remaining events wait in the inbox for the next
pass.

So a slow handler does not make the worker look hung, or leave the consumer group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerSettings:
    """The settings of a consumer."""

    batch_size: int = 500
    batch_bytes: int = BATCH_BYTES
    """The record that brings a batch to this size in bytes is its last one, however large it is."""
    poll_timeout: timedelta = timedelta(milliseconds=200)
    """How long a pass waits for records; due retries wait no longer than this."""
    pending_limit: int = 5000
    """A partition with this many unfinished events in the inbox is paused until it has half of
    them."""
    topic_prefix: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerResult:
    """The result of one pass."""

    records: int = 0
    fresh: int = 0
    duplicates: int = 0
    parked: int = 0
    ignored: int = 0
    """Events of types that the group has no handler for."""
    paused: int = 0
    """Partitions that are not polled, because too many of their events are unfinished."""
    outcomes: Counter[AttemptOutcome] = field(default_factory=Counter)

    @property
    def more(self) -> bool:
        """Whether there was work, so that the next pass should follow at once."""
        return self.records > 0 or _attempts_in(self.outcomes) > 0


class Consumer:
    """One worker of a consumer group; any number of workers share the group's inbox.

    The steps of a record: decode, remove duplicates (the INSERT into the inbox), wait while its key
    is blocked, count the attempt, commit the offset. Then the group's interceptors and the handler
    run, in a batch with other events. An event that cannot share a batch, waits for its key or has
    failed is processed alone, from the inbox, and finally given up. So no single event blocks its
    partition; only too many unfinished events do, see `PartitionBackpressure`.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        fetcher: RecordFetcher,
        store: InboxStore,
        processors: Sequence[EventProcessor],
        settings: ConsumerSettings,
        lanes: Lanes | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Process events in as many lanes as there are processors, with the help of `lanes`.

        By default one lane processes all events, in the thread of the pass.
        """
        self._group = group
        self._fetcher = fetcher
        self._store = store
        self._settings = settings
        self._stopping = stopping
        self._clock = clock
        self._lanes = [
            Lane(
                executor=BatchExecutor(
                    group=group, processor=each, is_time_up=self._is_time_up, clock=clock
                ),
                processor=each,
                is_time_up=self._is_time_up,
            )
            for each in processors
        ]
        self._runner = lanes or OneLane()
        self._breaker = processors[0].breaker
        self._probes = Probes(
            group=group,
            store=store,
            processor=processors[0],
            runner=self._runner,
            is_time_up=self._is_time_up,
        )
        self._due = DueEvents(
            group=group,
            store=store,
            breaker=self._breaker,
            interval=settings.poll_timeout,
            clock=clock,
        )
        self._backpressure = PartitionBackpressure(
            group=group.name,
            limit=settings.pending_limit,
            count=self._count_pending,
            clock=clock,
        )
        self._unhandled = UnhandledEvents(group=group, store=store, clock=clock)
        self._paused: frozenset[TopicPartition] = frozenset()
        self._pass_ends = clock() + LONGEST_PASS

    def run_once(self) -> ConsumerResult:
        """Make one pass: process due events of the inbox; then fetch, receive and process records.

        Errors of the database and the broker are raised; records that were not received are fetched
        again.
        """
        self._pass_ends = self._clock() + LONGEST_PASS
        due = self._due.poll(limit=self._settings.batch_size)
        outcomes = process_in_lanes(self._lanes, self._runner, envelopes=due)
        outcomes.update(self._probes.run_once())
        self._pause_partitions()
        self._unhandled.sample()
        batch = self._fetch(waits=not _attempts_in(outcomes))
        if not batch.records:
            return ConsumerResult(paused=len(self._paused), outcomes=outcomes)
        receipt = self._receive(batch)
        outcomes.update(self._process_received(receipt))
        if len(batch.records) == self._settings.batch_size or _all_applied(receipt, outcomes):
            # Either more records wait, or no event of this pass does.
            self._due.permit_leaving_out()
        return ConsumerResult(
            records=len(batch.records),
            fresh=len(receipt.fresh),
            duplicates=receipt.duplicates,
            parked=len(receipt.parked),
            ignored=batch.ignored,
            paused=len(self._paused),
            outcomes=outcomes,
        )

    def has_caught_up(self) -> bool:
        """Whether the passes have received all records of the topics, for this member of the group.

        Events that wait in the inbox do not count, nor do partitions that stay paused. Raises
        BrokerUnavailable, and errors of the database.
        """
        if not self._fetcher.has_caught_up():
            return False
        self._backpressure.sample_paused()
        # The next pass reads a partition that has drained since it was paused.
        return self._paused <= self._backpressure.paused

    def close(self) -> None:
        """Leave the group."""
        try:
            self._fetcher.close()
        finally:
            self._runner.close()

    def _pause_partitions(self) -> None:
        """Pause the partitions with too many unfinished events, and no others."""
        self._backpressure.sample()
        if self._backpressure.paused != self._paused:
            self._fetcher.pause(self._backpressure.paused)
            self._paused = self._backpressure.paused

    def _fetch(self, *, waits: bool) -> FetchedBatch:
        settings = self._settings
        return self._fetcher.fetch(
            timeout=settings.poll_timeout.total_seconds() if waits else 0.0,
            limit=settings.batch_size,
            limit_bytes=settings.batch_bytes,
        )

    def _receive(self, batch: FetchedBatch) -> Receipt:
        """Receive a batch into the inbox, then commit its offsets."""
        try:
            arrivals = self._breaker.without_starts(batch.arrivals)
            receipt = self._store.receive(self._group.name, arrivals, batch.parked)
        except ReceivedInPart as part:
            # The received part is read again, and its events are then duplicates.
            self._fetcher.rewind(batch)
            log_parked(self._group.name, part.receipt.parked)
            self._process_received(part.receipt)
            raise part.error from None
        except BaseException:
            self._fetcher.rewind(batch)
            raise
        log_parked(self._group.name, receipt.parked)
        self._backpressure.received(batch.records)
        # The rows are committed, so the partitions can continue whatever the handlers do.
        self._fetcher.commit(batch)
        return receipt

    def _process_received(self, receipt: Receipt) -> Outcomes:
        """Process received events: the started attempts in batches, and then the others alone."""
        others: Sequence[Envelope] = ()
        if len(receipt.started) < len(receipt.fresh):
            started = {(a.envelope.id, a.envelope.source) for a in receipt.started}
            others = [e for e in receipt.fresh if (e.id, e.source) not in started]
        return process_in_lanes(
            self._lanes, self._runner, attempts=receipt.started, envelopes=others
        )

    def _count_pending(self) -> Mapping[TopicPartition, int]:
        prefix = self._settings.topic_prefix
        pending = self._store.pending(self._group.name, handled=self._group.handled())
        return {
            (physical_topic(prefix, topic, kind), partition): count
            for (topic, kind, partition), count in pending.items()
        }

    def _is_time_up(self) -> bool:
        return self._stopping() or self._clock() >= self._pass_ends


def _attempts_in(outcomes: Counter[AttemptOutcome]) -> int:
    """Return the number of attempts: a blocked event had none."""
    return outcomes.total() - outcomes[AttemptOutcome.BLOCKED]


def _all_applied(receipt: Receipt, outcomes: Counter[AttemptOutcome]) -> bool:
    """Whether the pass has applied all new events, and processed no others."""
    return outcomes[AttemptOutcome.APPLIED] == outcomes.total() == len(receipt.fresh)
