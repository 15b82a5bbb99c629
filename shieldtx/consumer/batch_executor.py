"""Executes batches: first attempts share a transaction as long as none of them fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias

from sqlalchemy.orm import Session

from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.failures import concerns_no_event
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handler_caller import HandlerCaller, UnfitPayload, opened
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Event
from shieldtx.domain.reasons import reason_of
from shieldtx.errors import UnknownSchemaVersion, UpcastFailed
from shieldtx.ports.inbox import Attempt, AttemptOutcome

log = logging.getLogger(__name__)

LONGEST = 1.0
"""Maximum seconds that a batch's transaction should take, because it locks its rows meanwhile."""

FIRST = 8
"""The number of events in a worker's first transaction, which measures their speed."""

SHARE_OF_LEASE = 0.25
"""The part of the shortest lease after which the rest of a batch is processed one by one."""

_SHORTEST = 0.000_001
"""The minimum duration of a transaction, in seconds."""

_Key: TypeAlias = tuple[str, str | None]
_Call: TypeAlias = tuple[int, Sequence[Attempt], Handler]
"""Position of the call's first attempt, its attempts, its handler; a tuple: made for each event."""


class BatchExecutor:
    """Applies started attempts in the order of their arrival, many in one transaction.

    A failure costs only the failing event. The transaction is rolled back, and the events before
    the failing one are applied again. The failing event begins the next transaction, since the
    state that the others left (a temporary table, a `SET LOCAL`) may be the cause. If it fails
    there too, its attempt has failed. The events after it continue, except those of its key, which
    wait.

    An error that no single event causes (a deadlock, a COMMIT that fails, a lost lease) ends the
    batch: its starts are taken back, and each event is processed alone.

    A handler that leaves a state for the next one is the last of its transaction: each event finds
    the same state as alone.

    If the process dies, the event that killed it is unknown. The worker that takes the rows over
    keeps the counted number, and processes each event alone. The other events lose nothing, and the
    killing event gets one run more than its `max_attempts`.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        processor: EventProcessor,
        is_time_up: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Execute batches of a group; `processor` processes the events that leave a batch."""
        self._group = group
        self._store = processor.store
        self._processor = processor
        self._caller: HandlerCaller = processor.caller
        self._recorder: AttemptRecorder = processor.recorder
        self._is_time_up = is_time_up
        self._clock = clock
        self._seconds_per_event = LONGEST / FIRST
        self._ends_transactions: set[str] = set()
        """Event types whose handlers have left a state for the next one, and may do so again."""

    def execute(self, attempts: Sequence[Attempt]) -> Counter[AttemptOutcome]:
        """Execute the attempts that one call of `receive` has started; return their outcomes.

        Errors of the database are raised; rows then stay unchanged until their lease expires.
        """
        if not attempts:
            return Counter()
        self._recorder.forget()
        shortest = min(self._handler_of(attempt).lease for attempt in attempts).total_seconds()
        batch = _Batch(ends=self._clock() + shortest * SHARE_OF_LEASE)
        self._work_off(attempts, batch)
        return batch.outcomes

    def _work_off(self, attempts: Sequence[Attempt], batch: _Batch) -> None:
        # Attempts of a batch that was received in parts have a token for each part.
        parts = [_Task(attempts=list(part)) for _, part in groupby(attempts, attrgetter("token"))]
        agenda = parts[::-1]
        while agenda:
            task = agenda.pop()
            attempts = self._free(task.attempts, batch)
            if not attempts:
                continue
            if task.error is not None:
                self._fail(attempts[0], task.error, batch)
            elif self._is_time_up() or self._clock() >= batch.ends:
                self._process_alone(attempts, batch)
            else:
                end = self._end_of_transaction(attempts)
                agenda += [
                    _Task(attempts=attempts[end:]),
                    *reversed(self._apply_or_divide(attempts[:end], batch)),
                ]

    def _end_of_transaction(self, attempts: Sequence[Attempt]) -> int:
        """Return the number of attempts for the next transaction."""
        most = min(len(attempts), max(1, int(LONGEST / self._seconds_per_event)))
        if self._ends_transactions:
            for first, called, _ in self._calls(attempts[:most]):
                if called[0].envelope.type in self._ends_transactions:
                    return first + len(called)
        return most

    def _free(self, attempts: Sequence[Attempt], batch: _Batch) -> Sequence[Attempt]:
        """Return the attempts that no unfinished event of their key blocks; release the others."""
        if not batch.blocked_keys:
            return attempts
        self._store.release([a for a in attempts if _key(a) in batch.blocked_keys])
        return [a for a in attempts if _key(a) not in batch.blocked_keys]

    def _apply_or_divide(self, attempts: Sequence[Attempt], batch: _Batch) -> list[_Task]:
        """Apply attempts in one transaction; return the remaining tasks in order."""
        try:
            applied = self._apply(attempts, batch)
        except _FailedCall as failed:
            return _divided(attempts, failed)
        except _InterruptedCall as interrupted:
            self._recorder.interrupt(interrupted.attempts, interrupted.error)
            raise interrupted.error from None
        except Exception as error:  # noqa: BLE001  what no single event causes
            log.warning(
                "batch failed, events run alone",
                extra={
                    "action": "batch_failed",
                    "group": self._group.name,
                    "count": len(attempts),
                    "error": reason_of(error),
                },
            )
            self._process_alone(attempts, batch)
            return []
        batch.outcomes[AttemptOutcome.APPLIED] += applied
        self._recorder.succeed(attempts[:applied], AttemptOutcome.APPLIED)
        return [_Task(attempts=attempts[applied:])]

    def _apply(self, attempts: Sequence[Attempt], batch: _Batch) -> int:
        """Apply attempts in one transaction; return how many, or raise the failure."""
        applied, began = 0, self._clock()
        is_recorded = self._recorder.times_attempts
        with self._store.effects(attempts) as session:
            for call in self._calls(attempts):
                if self._clock() >= batch.ends:
                    raise TimeoutError("they have taken too much of their leases")
                if is_recorded:
                    self._recorder.begin(call[1])
                self._make(call, session)
                applied += len(call[1])
                if applied < len(attempts) and self._store.ends_after(session, attempts, applied):
                    self._ends_transactions.add(call[1][0].envelope.type)
                    break
        self._seconds_per_event = max(self._clock() - began, _SHORTEST) / applied
        return applied

    def _make(self, call: _Call, session: Session) -> None:
        first, attempts, handler = call
        try:
            if handler.takes_list:
                self._caller.call_with_list(session, handler, _opened(first, attempts, handler))
            else:
                self._caller.call(session, handler, attempts[0])
        except Exception as error:
            if isinstance(error, _FailedCall) or concerns_no_event(error):
                raise
            raise _FailedCall(first, len(attempts), error) from error
        except BaseException as error:
            raise _InterruptedCall(attempts, error) from error

    def _calls(self, attempts: Sequence[Attempt]) -> Iterator[_Call]:
        """Yield the handler calls that these attempts need, with the longest possible lists."""
        first = 0
        while first < len(attempts):
            handler, end = self._handler_of(attempts[first]), first + 1
            if handler.takes_list:
                event_type = attempts[first].envelope.type
                while end < len(attempts) and attempts[end].envelope.type == event_type:
                    end += 1
            yield first, attempts[first:end], handler
            first = end

    def _fail(self, attempt: Attempt, error: Exception, batch: _Batch) -> None:
        batch.add(attempt, self._recorder.fail(attempt, self._handler_of(attempt), error))

    def _process_alone(self, attempts: Sequence[Attempt], batch: _Batch) -> None:
        """Process each event alone, now or, when the time is up, in a later pass."""
        self._store.release(attempts)
        for attempt in attempts:
            if self._is_time_up():
                return
            batch.add(attempt, self._processor.process(attempt.envelope))

    def _handler_of(self, attempt: Attempt) -> Handler:
        handler = self._group.handler_of(attempt.envelope.type, attempt.envelope.kind)
        if handler is None:
            raise LookupError(f"no handler for {attempt.envelope.type!r}, which was just received")
        return handler


@dataclass(kw_only=True, slots=True)
class _Batch:
    """The progress of the attempts of one `receive`."""

    ends: float
    """When the batch has used its share of the shortest lease."""
    outcomes: Counter[AttemptOutcome] = field(default_factory=Counter)
    blocked_keys: set[_Key] = field(default_factory=set)
    """Keys of events that are not finished: later events of these keys wait."""

    def add(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        """Add the outcome of one attempt."""
        self.outcomes[outcome] += 1
        if outcome not in _FINISHED and attempt.envelope.key is not None:
            self.blocked_keys.add(_key(attempt))


_FINISHED = {AttemptOutcome.APPLIED, AttemptOutcome.REFUSED}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """Attempts to be applied together; with an error, the single attempt that has failed."""

    attempts: Sequence[Attempt]
    error: Exception | None = None


class _FailedCall(Exception):
    """The call for `count` attempts, from position `first` of a transaction, has failed."""

    def __init__(self, first: int, count: int, error: Exception) -> None:
        # The text may be logged as the context of another error: no payload in it.
        super().__init__(type(error).__name__)
        self.first = first
        self.count = count
        self.error = error


class _InterruptedCall(BaseException):
    """The call for these attempts ends the process."""

    def __init__(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.attempts = attempts
        self.error = error


def _divided(attempts: Sequence[Attempt], failed: _FailedCall) -> list[_Task]:
    """Return the remaining tasks of a transaction in which a call has failed, in order.

    A call fails its attempt only as the first of its transaction. A call for several events is
    divided into halves until the failing event is alone.
    """
    first, count = failed.first, failed.count
    if first > 0:
        # Perhaps caused by earlier calls of the transaction: the failing call begins the next one.
        return [_Task(attempts=attempts[:first]), _Task(attempts=attempts[first:])]
    after = _Task(attempts=attempts[count:])
    if count == 1:
        return [_Task(attempts=attempts[:1], error=failed.error), after]
    half = count // 2
    return [_Task(attempts=attempts[:half]), _Task(attempts=attempts[half:count]), after]


def _opened(first: int, attempts: Sequence[Attempt], handler: Handler) -> list[Event]:
    """Return the events of a call for a list; raises _FailedCall for the first unreadable one."""
    events = []
    for position, attempt in enumerate(attempts, first):
        try:
            events.append(opened(handler, attempt.envelope, attempt.number))
        except (UnfitPayload, UnknownSchemaVersion, UpcastFailed) as unread:
            raise _FailedCall(position, 1, unread) from unread
    return events


def _key(attempt: Attempt) -> _Key:
    return attempt.envelope.topic, attempt.envelope.key
