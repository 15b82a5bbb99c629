"""Fetches batches of records: reads and decodes them, also ahead of the consumer in a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future

from shieldtx._executors import SingleThread
from shieldtx.consumer.arrivals import read_arrival
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.passed_over import PassedOverEvents
from shieldtx.domain.events import Envelope
from shieldtx.errors import BrokerError, UndecodableRecord
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, Subscriber, TopicPartition
from shieldtx.ports.consumer import FetchedBatch, RecordFetcher
from shieldtx.ports.inbox import IncomingEvent, Parked

log = logging.getLogger(__name__)

COMMIT_EVERY = 0.1
"""Seconds between two commits of offsets while records arrive; each costs a round trip to Kafka."""


class BlockingFetcher:
    """Reads a batch on each call, and commits its offsets at once."""

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        subscriber: Subscriber,
        decode: Callable[[ReceivedRecord], Envelope],
    ) -> None:
        self._group = group
        self._subscriber = subscriber
        self._decode = decode
        self._passed_over = PassedOverEvents(group.name)
        self._to_rewind: tuple[ReceivedRecord, ...] = ()
        """Records that were polled and not returned."""

    def fetch(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> FetchedBatch:
        """Return up to `limit` records; any error while they are decoded rewinds all of them."""
        self._rewind()
        polled = self._subscriber.poll(timeout=timeout, limit=limit, limit_bytes=limit_bytes)
        self._to_rewind = records = tuple(polled)
        try:
            batch = self._sorted(records)
        except BaseException:
            # The client's position is after these records: the next commit would skip them.
            self._rewind()
            raise
        self._to_rewind = ()
        return batch

    def _rewind(self) -> None:
        """Rewind the records that an error has left; where that fails, the next call does it."""
        if self._to_rewind:
            self._subscriber.rewind(self._to_rewind)
            self._to_rewind = ()

    def _sorted(self, records: tuple[ReceivedRecord, ...]) -> FetchedBatch:
        """Return records as events to handle, records to park, and a count of the others."""
        arrivals: list[IncomingEvent] = []
        parked: list[Parked] = []
        for record in records:
            try:
                arrival = read_arrival(
                    record,
                    group=self._group,
                    decode=self._decode,
                    passed_over=self._passed_over.add,
                )
            except UndecodableRecord as error:
                parked.append(Parked(record=record, reason=str(error)))
            else:
                if arrival is not None:
                    arrivals.append(arrival)
        self._passed_over.log()
        ignored = len(records) - len(arrivals) - len(parked)
        return FetchedBatch(records, tuple(arrivals), tuple(parked), ignored)

    def commit(self, batch: FetchedBatch) -> None:
        """Commit the offsets of a batch, and wait for the broker's response."""
        self._subscriber.commit(batch.records)

    def rewind(self, batch: FetchedBatch) -> None:
        """Make the next `fetch` begin with this batch's records."""
        # In one call with the records that are left to rewind: the first record of a partition
        # counts.
        self._subscriber.rewind(batch.records + self._to_rewind)
        self._to_rewind = ()

    def pause(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Stop fetching from these partitions, and resume all others."""
        self._subscriber.pause(partitions)

    def has_caught_up(self) -> bool:
        """Whether the subscriber has read all records, except those of paused partitions."""
        return self._subscriber.has_caught_up()

    def close(self) -> None:
        """Leave the group."""
        self._subscriber.close()


class PrefetchingFetcher:
    """Fetches and decodes in a thread, while the consumer uses its database.

    After a full batch the next one is read at once. A smaller batch has emptied the topics: records
    that arrive meanwhile are better read together, later. Offsets are also committed in the thread,
    at intervals; a consumer that reads their records again finds them in the inbox.
    """

    def __init__(
        self,
        fetcher: RecordFetcher,
        *,
        group: str,
        fetch_thread: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Fetch for a group through another fetcher in `fetch_thread`; by default a new thread.

        The thread makes one call at a time, in order.
        """
        self._fetcher = fetcher
        self._group = group
        self._thread = fetch_thread or SingleThread("shieldtx-fetch")
        self._clock = clock
        self._prefetched: Future[FetchedBatch] | None = None
        self._to_rewind: tuple[ReceivedRecord, ...] = ()
        """Returned records that must be read again before any other."""
        self._uncommitted: dict[TopicPartition, ReceivedRecord] = {}
        """The last record of each partition whose offset is to be committed."""
        self._commit: Future[None] | None = None
        self._committing: dict[TopicPartition, ReceivedRecord] = {}
        """The records of the commit in progress."""
        self._next_commit = clock()
        self._is_closed = False

    def fetch(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> FetchedBatch:
        """Return the prefetched batch, or else read one; also raises the error of a commit."""
        self._end_commit()
        self._rewind()
        # Two batches exist at a time: each has half of the bytes, so that no count is needed.
        half = max(1, limit_bytes // 2)
        batch = self._read_ahead()
        if not batch.records:
            self._prefetched = self._begin_fetch(timeout, limit, half)
            batch = self._read_ahead()
        following = None
        if len(batch.records) == limit:
            following = self._begin_fetch(0.0, limit, half)
        if not batch.records:
            self._begin_commit()
        # Last: after any earlier error, the next call finds the records.
        self._prefetched = following
        return batch

    def _begin_fetch(self, timeout: float, limit: int, limit_bytes: int) -> Future[FetchedBatch]:
        return self._thread.submit(
            self._fetcher.fetch, timeout=timeout, limit=limit, limit_bytes=limit_bytes
        )

    def _read_ahead(self) -> FetchedBatch:
        """Wait for the prefetched batch, and return it; after an error none is prefetched."""
        prefetched = self._prefetched
        if prefetched is None:
            return FetchedBatch()
        if prefetched.exception() is not None:
            self._prefetched = None
        return prefetched.result()

    def commit(self, batch: FetchedBatch) -> None:
        """Commit the offsets of a batch now or later; a later `fetch` raises the errors."""
        self._uncommitted |= {(record.topic, record.partition): record for record in batch.records}
        if self._clock() >= self._next_commit:
            self._begin_commit()

    def _begin_commit(self) -> None:
        if self._uncommitted and self._commit is None:
            batch = FetchedBatch(tuple(self._uncommitted.values()))
            self._commit = self._thread.submit(self._fetcher.commit, batch)
            self._committing, self._uncommitted = self._uncommitted, {}
            self._next_commit = self._clock() + COMMIT_EVERY

    def _end_commit(self) -> None:
        """Wait for the commit in progress; offsets that it did not commit stay to be committed."""
        commit, self._commit = self._commit, None
        if commit is None:
            return
        try:
            commit.result()
        except BrokerError:
            self._uncommitted = self._committing | self._uncommitted
            raise

    def rewind(self, batch: FetchedBatch) -> None:
        """Make the next `fetch` begin with this batch, then the prefetched one: the order stays.

        Where that fails, the next `fetch` begins with another attempt.
        """
        if batch.records:
            self._to_rewind = batch.records
        self._rewind(also_prefetched=True)

    def _rewind(self, *, also_prefetched: bool = False) -> None:
        if not self._to_rewind and not also_prefetched:
            return
        failure = None if self._prefetched is None else self._prefetched.exception()
        if failure is not None:
            # The failed read has rewound its own records.
            self._prefetched = None
            log.warning(
                "prefetch failed",
                extra={
                    "action": "prefetch_failed",
                    "group": self._group,
                    "error": str(failure),
                },
            )
        records = self._to_rewind + self._read_ahead().records
        self._thread.submit(self._fetcher.rewind, FetchedBatch(records)).result()
        self._prefetched, self._to_rewind = None, ()

    def pause(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Stop fetching from these partitions: their prefetched records are read later, too."""
        self.rewind(FetchedBatch())
        self._thread.submit(self._fetcher.pause, partitions).result()

    def has_caught_up(self) -> bool:
        """Whether all records are fetched and none is prefetched; False after a failed read."""
        if self._to_rewind:
            return False
        prefetched = self._prefetched
        # The next `fetch` raises the error of a failed read.
        if prefetched is not None and (
            prefetched.exception() is not None or prefetched.result().records
        ):
            return False
        return self._thread.submit(self._fetcher.has_caught_up).result()

    def close(self) -> None:
        """Commit the remaining offsets, if the broker is available, and leave the group.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._end_commit()
            self._begin_commit()
            self._end_commit()
        except BrokerError as error:
            log.warning(
                "offsets could not be committed",
                extra={
                    "action": "offsets_not_committed",
                    "group": self._group,
                    "error": str(error),
                },
            )
        finally:
            self._thread.submit(self._fetcher.close).result()
            self._thread.shutdown()
