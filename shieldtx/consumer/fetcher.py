"""What a consumer takes in: batches of records, read and decoded, where it pays in a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor, Future
from typing import NamedTuple, Protocol

from shieldtx._executors import SingleThread
from shieldtx.consumer.batch_executor import shares_batches
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Envelope
from shieldtx.errors import BrokerError, UndecodableRecord
from shieldtx.ports.broker import BATCH_BYTES, ReceivedRecord, Subscriber, TopicPartition
from shieldtx.ports.inbox import IncomingEvent, Parked

log = logging.getLogger(__name__)

COMMIT_EVERY = 0.1
"""Seconds between two commits of offsets while records come; each costs a round trip to Kafka."""


class Batch(NamedTuple):
    """Records in the order they were read, and what they are to the group."""

    records: tuple[ReceivedRecord, ...] = ()
    arrivals: tuple[IncomingEvent, ...] = ()
    parked: tuple[Parked, ...] = ()
    ignored: int = 0
    """Events of types that the group has no handler for."""


class Intake(Protocol):
    """Where a consumer has its records from; used by one thread at a time."""

    def take(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> Batch:
        """Return up to `limit` records, waiting up to `timeout` seconds; raises BrokerError.

        The record that brings their sizes to `limit_bytes` is the last one.
        """
        ...

    def done(self, batch: Batch) -> None:
        """Have the offsets of a batch committed, whose rows are; raises BrokerError."""
        ...

    def put_back(self, batch: Batch) -> None:
        """Have a batch read again: its rows could not be stored."""
        ...

    def hold(self, places: AbstractSet[TopicPartition]) -> None:
        """Take nothing from these partitions from now on, and from all others."""
        ...

    def has_caught_up(self) -> bool:
        """Whether all that may be taken has been taken; raises BrokerUnavailable."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class DirectIntake:
    """Reads a batch when it is asked for and commits its offsets when it is done."""

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

    def take(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> Batch:
        """Return up to `limit` records; any error while they are decoded rewinds all of them."""
        polled = self._subscriber.poll(timeout=timeout, limit=limit, limit_bytes=limit_bytes)
        records = tuple(polled)
        try:
            return self._sorted(records)
        except BaseException:
            # The client's position is after these records: the next commit would skip them.
            self._subscriber.rewind(records)
            raise

    def _sorted(self, records: tuple[ReceivedRecord, ...]) -> Batch:
        arrivals: list[IncomingEvent] = []
        parked: list[Parked] = []
        for record in records:
            try:
                arrival = self._arrival(record)
            except UndecodableRecord as error:
                log.error(  # noqa: TRY400  the record is at fault, a traceback says nothing
                    "parked %s[%d]@%d: %s", record.topic, record.partition, record.offset, error
                )
                parked.append(Parked(record=record, reason=str(error)))
            else:
                if arrival is not None:
                    arrivals.append(arrival)
        ignored = len(records) - len(arrivals) - len(parked)
        return Batch(records, tuple(arrivals), tuple(parked), ignored)

    def done(self, batch: Batch) -> None:
        """See Intake."""
        self._subscriber.commit(batch.records)

    def put_back(self, batch: Batch) -> None:
        """See Intake."""
        self._subscriber.rewind(batch.records)

    def hold(self, places: AbstractSet[TopicPartition]) -> None:
        """See Intake."""
        self._subscriber.pause(places)

    def has_caught_up(self) -> bool:
        """See Intake."""
        return self._subscriber.has_caught_up()

    def close(self) -> None:
        """See Intake."""
        self._subscriber.close()

    def _arrival(self, record: ReceivedRecord) -> IncomingEvent | None:
        envelope = self._decode(record)
        handler = self._group.handler_of(envelope.type, envelope.kind)
        if handler is None:
            return None
        handler.check_authority(envelope)
        lease = handler.lease if shares_batches(handler, envelope) else None
        return IncomingEvent(envelope=envelope, record=record, lease=lease)


class ReadAheadIntake:
    """Leaves broker and decoding to one thread, beside which the consumer works in its database.

    Behind a full batch the next one is read at once. A smaller one has emptied the topics: what
    comes meanwhile is better read together, later. Offsets are committed in the thread too, from
    time to time; whoever reads their records once more finds them in the inbox.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        beside: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read by way of another intake, `beside` the consumer; a thread of its own by default.

        It makes one call at a time, in their order.
        """
        self._intake = intake
        self._beside = beside or SingleThread("shieldtx-intake")
        self._clock = clock
        self._ahead: Future[Batch] | None = None
        self._done: dict[tuple[str, int], ReceivedRecord] = {}
        """The last record of each partition whose offset is not committed yet."""
        self._commit: Future[None] | None = None
        self._committing: dict[tuple[str, int], ReceivedRecord] = {}
        self._next_commit = clock()
        self._is_closed = False

    def take(self, *, timeout: float, limit: int, limit_bytes: int = BATCH_BYTES) -> Batch:
        """See Intake; raises what a commit of offsets meanwhile has met, too."""
        self._end_commit()
        # Two batches are held at a time: each has half of the bytes, which need not be counted.
        half = max(1, limit_bytes // 2)
        batch = self._read_ahead()
        if not batch.records:
            self._begin_reading(timeout, limit, half)
            batch = self._read_ahead()
        if len(batch.records) == limit:
            self._begin_reading(0.0, limit, half)
        if not batch.records:
            self._begin_commit()
        return batch

    def _begin_reading(self, timeout: float, limit: int, limit_bytes: int) -> None:
        self._ahead = self._beside.submit(
            self._intake.take, timeout=timeout, limit=limit, limit_bytes=limit_bytes
        )

    def done(self, batch: Batch) -> None:
        """See Intake; whether the broker has taken the offsets is known later."""
        self._done |= {(record.topic, record.partition): record for record in batch.records}
        if self._clock() >= self._next_commit:
            self._begin_commit()

    def put_back(self, batch: Batch) -> None:
        """See Intake; what was read ahead goes back too, so that the order stays."""
        records = batch.records
        failure = None if self._ahead is None else self._ahead.exception()
        if failure is None:
            records += self._read_ahead().records
        else:
            # The failed read has rewound its own records.
            self._ahead = None
            log.warning("nothing was read ahead: %s", failure)
        self._beside.submit(self._intake.put_back, Batch(records)).result()

    def hold(self, places: AbstractSet[TopicPartition]) -> None:
        """See Intake; what was read ahead goes back, so that none of it is from these."""
        self.put_back(Batch())
        self._beside.submit(self._intake.hold, places).result()

    def has_caught_up(self) -> bool:
        """See Intake."""
        ahead = self._ahead
        # What a failure to read ahead means, the next pass tells.
        if ahead is not None and (ahead.exception() is not None or ahead.result().records):
            return False
        return self._beside.submit(self._intake.has_caught_up).result()

    def close(self) -> None:
        """See Intake; commits what is done, if the broker is there. Once more is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._end_commit()
            self._begin_commit()
            self._end_commit()
        except BrokerError as error:
            log.warning("offsets are not committed, their records are delivered again: %s", error)
        finally:
            self._beside.submit(self._intake.close).result()
            self._beside.shutdown()

    def _read_ahead(self) -> Batch:
        if self._ahead is None:
            return Batch()
        # This waits. Whatever interrupts it, the next call finds the records.
        self._ahead.exception()
        ahead, self._ahead = self._ahead, None
        return ahead.result()

    def _begin_commit(self) -> None:
        if self._done and self._commit is None:
            self._committing, self._done = self._done, {}
            batch = Batch(tuple(self._committing.values()))
            self._commit = self._beside.submit(self._intake.done, batch)
            self._next_commit = self._clock() + COMMIT_EVERY

    def _end_commit(self) -> None:
        """Wait for the commit on its way, and keep the offsets that it could not bring home."""
        commit, self._commit = self._commit, None
        if commit is None:
            return
        try:
            commit.result()
        except BrokerError:
            self._done = self._committing | self._done
            raise
