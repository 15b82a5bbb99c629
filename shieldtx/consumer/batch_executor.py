"""Executes batches: first attempts share a transaction as long as none of them fails."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.batch_calls import BatchCalls, FailedCall, InterruptedCall
from shieldtx.consumer.blocked_attempts import Key, divided, key_of
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.refusal import Refusal
from shieldtx.consumer.shared_transaction import SharedTransaction
from shieldtx.domain.reasons import reason_of
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


class BatchExecutor:
    """Applies started attempts in the order of their arrival, many in one transaction.

    A failure costs only the failing event. The transaction is rolled back, and the events before
    the failing one are applied again. The failing event begins the next transaction, since the
    state that the others left (a temporary table, a `SET LOCAL`) may be the cause. If it fails
    there too, its attempt has failed. The events after it continue, except those of its key, which
    wait. After a failure, savepoints protect the events of the type, and a refused event ends in
    the transaction of the others (`SharedTransaction`).

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
        self._calls = BatchCalls(group, processor.caller)
        self._recorder: AttemptRecorder = processor.recorder
        self._is_time_up = is_time_up
        self._clock = clock
        self._transaction = SharedTransaction(
            calls=self._calls, store=processor.store, recorder=processor.recorder, clock=self._now
        )
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
        shortest = min(self._calls.handler_of(attempt).lease for attempt in attempts)
        batch = _Batch(ends=self._clock() + shortest.total_seconds() * SHARE_OF_LEASE)
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
            if task.errors:
                self._fail(attempts[0], task.errors.pop(), batch)
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
            for first, called, _ in self._calls.needed(attempts, 0, most):
                if called[0].envelope.type in self._ends_transactions:
                    return first + len(called)
        return most

    def _free(self, attempts: Sequence[Attempt], batch: _Batch) -> Sequence[Attempt]:
        """Return the attempts that no event of their key or pause blocks; release the others."""
        free, waiting = divided(attempts, batch.blocked_keys, self._processor.breaker)
        if waiting:
            self._store.release(waiting)
        return free

    def _apply_or_divide(self, attempts: Sequence[Attempt], batch: _Batch) -> list[_Task]:
        """Apply attempts in one transaction; return the remaining tasks in order."""
        began = self._clock()
        try:
            progress = self._transaction.apply(attempts, ends=batch.ends)
        except FailedCall as failed:
            return _divided(attempts, failed)
        except InterruptedCall as interrupted:
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
            # It measured nothing: on a machine that has become slower, the next one would fail too.
            self._seconds_per_event = min(2 * self._seconds_per_event, LONGEST)
            self._process_alone(attempts, batch)
            return []
        self._seconds_per_event = max(self._clock() - began, _SHORTEST) / progress.done
        if progress.leaves_state is not None:
            self._ends_transactions.add(progress.leaves_state)
        if applied := progress.applied:
            batch.outcomes[AttemptOutcome.APPLIED] += len(applied)
            self._recorder.succeed(applied, AttemptOutcome.APPLIED)
        self._end(progress.refusals, batch)
        return [_Task(attempts=attempts[progress.done :])]

    def _end(self, refusals: list[Refusal], batch: _Batch) -> None:
        for refusal in refusals:
            batch.add(refusal.attempt, self._recorder.refused(refusal))
        refusals.clear()  # as in _Task

    def _now(self) -> float:
        return self._clock()

    def _fail(self, attempt: Attempt, error: Exception, batch: _Batch) -> None:
        batch.add(attempt, self._recorder.fail(attempt, self._calls.handler_of(attempt), error))

    def _process_alone(self, attempts: Sequence[Attempt], batch: _Batch) -> None:
        """Process each event alone, now or, when the time is up, in a later pass."""
        self._store.release(attempts)
        for attempt in attempts:
            if self._is_time_up():
                return
            batch.add(attempt, self._processor.process(attempt.envelope))


@dataclass(kw_only=True, slots=True)
class _Batch:
    """The progress of the attempts of one `receive`."""

    ends: float
    """When the batch has used its share of the shortest lease."""
    outcomes: Counter[AttemptOutcome] = field(default_factory=Counter)
    blocked_keys: set[Key] = field(default_factory=set)
    """Keys of events that are not finished: later events of these keys wait."""

    def add(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        """Add the outcome of one attempt."""
        self.outcomes[outcome] += 1
        if outcome not in _FINISHED and attempt.envelope.key is not None:
            self.blocked_keys.add(key_of(attempt))


_FINISHED = {AttemptOutcome.APPLIED, AttemptOutcome.REFUSED, AttemptOutcome.DEAD}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """Attempts to be applied together; with an error, the single attempt that has failed."""

    attempts: Sequence[Attempt]
    errors: list[Exception] = field(default_factory=list)
    """One at most, and taken out: its frames refer to the task and to all events of the batch,
    which only the next of the rare collections would free."""


def _divided(attempts: Sequence[Attempt], failed: FailedCall) -> list[_Task]:
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
        return [_Task(attempts=attempts[:1], errors=[failed.error]), after]
    half = count // 2
    return [_Task(attempts=attempts[:half]), _Task(attempts=attempts[half:count]), after]
