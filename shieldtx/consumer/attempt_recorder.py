"""Records outcomes of attempts: failures in the inbox, and every outcome for the hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session

from shieldtx.consumer import failure_kinds
from shieldtx.consumer.attempt_log import AttemptLog
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.compensation import CameTooLate, Compensation, EventUnfinished
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.refusal import Refusal
from shieldtx.domain.error_groups import reason_with_leaves
from shieldtx.domain.events import Envelope, storable
from shieldtx.domain.reasons import reason_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import LeaseLost, UnknownSchemaVersion
from shieldtx.hooks.attempt_timer import AttemptTimer
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.inbox import Attempt, AttemptOutcome, InboxStore

UNREADABLE_WAIT = timedelta(minutes=1)
"""The wait of an event whose payload has a version that this release cannot read."""


class AttemptRecorder:
    """Records the outcomes of one group's attempts. Used by one thread.

    The effect of an attempt is committed together with its status: this class only notifies the
    hooks of a success.
    """

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        outbox: Outbox,
        compensation: Compensation,
        timer: AttemptTimer,
        breaker: Breaker,
        log: AttemptLog | None = None,
    ) -> None:
        """Record through the ports; recorders that share a `log` throttle it together."""
        self._breaker = breaker
        self._log = log or AttemptLog(group.name)
        self._store = store
        self._outbox = outbox
        self._compensation = compensation
        self._timer = timer

    @property
    def times_attempts(self) -> bool:
        """Whether any hook observes attempts: `begin` does nothing otherwise."""
        return self._timer.is_on

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Record that a handler is about to receive these events."""
        self._timer.begin(attempts)

    def succeed(self, attempts: Sequence[Attempt], outcome: AttemptOutcome) -> AttemptOutcome:
        """Record that the effects of these attempts are committed; return `outcome`."""
        self._timer.end(attempts, outcome)
        if outcome is not AttemptOutcome.MOOT:
            self._breaker.succeeded(attempts)
        return outcome

    def fail(self, attempt: Attempt, handler: Handler, error: Exception) -> AttemptOutcome:
        """Record that an attempt failed: the event is retried, or given up."""
        try:
            if isinstance(error, UnknownSchemaVersion):
                outcome = self._defer(attempt, error)
            elif self._is_of_paused_handler(attempt, handler, error):
                outcome = self._take_back(attempt, handler, error)
            else:
                outcome = self._retry_or_give_up(attempt, handler, error)
        except EventUnfinished as reason:
            return self.wait(attempt, reason)
        self._timer.fail(attempt, outcome, error)
        return outcome

    def is_refused(self, attempt: Attempt, handler: Handler, error: Exception) -> bool:
        """Whether the event of a failed attempt is given up at once."""
        is_commit = attempt.envelope.kind is TxKind.COMMIT
        is_readable = not isinstance(error, UnknownSchemaVersion)
        return is_commit and is_readable and failure_kinds.is_final(error, handler)

    def refusal_of(self, attempt: Attempt, handler: Handler, error: Exception) -> Refusal:
        """Return how the event of an attempt that `is_refused` is given up."""
        return Refusal(
            attempt=attempt,
            error=error,
            reason=failure_kinds.failure_reason(error, handler),
            rollback=self._outbox.rollback_of(attempt.envelope, reason=reason_with_leaves(error)),
            is_deliberate=failure_kinds.is_refusal(error, handler),
        )

    def write_rollbacks(self, session: Session, refusals: Sequence[Refusal]) -> None:
        """Write the ROLLBACK events of refused events into the outbox, with one INSERT."""
        self._outbox.insert_envelopes(session, [refusal.rollback for refusal in refusals])

    def rollbacks_are_committed(self) -> None:
        """Wake the relay for what `write_rollbacks` has written."""
        self._outbox.wake()

    def refused(self, refusal: Refusal) -> AttemptOutcome:
        """Record that an event and its ROLLBACK event are committed, among others of a batch."""
        attempt, error = refusal.attempt, refusal.error
        traceback = failure_kinds.traceback_of(error)
        if refusal.is_deliberate:
            self._breaker.declared(attempt)
            self._log.refused(attempt, refusal.reason, traceback)
        else:
            self._log.given_up(attempt, refusal.reason, traceback)
        self._timer.fail(attempt, AttemptOutcome.REFUSED, error)
        return AttemptOutcome.REFUSED

    def exhaust(self, attempt: Attempt, handler: Handler) -> AttemptOutcome:
        """Record that the process died in the last attempt: the event is given up, or parked."""
        reason = "the last attempt ended with its process"
        outcome = self._give_up(attempt, handler, reason)
        self._timer.fail(attempt, outcome, reason)
        return outcome

    def lose(self, attempt: Attempt, reason: LeaseLost) -> AttemptOutcome:
        """Record that another worker has taken the event over."""
        self._log.lost(attempt, str(reason))
        self._timer.fail(attempt, AttemptOutcome.LOST, reason)
        return AttemptOutcome.LOST

    def wait(self, attempt: Attempt, reason: EventUnfinished) -> AttemptOutcome:
        """Take back the start of a rollback's attempt: its event is not settled yet."""
        self._log.waits(attempt, str(reason))
        self._store.release([attempt])
        self._timer.fail(attempt, AttemptOutcome.BLOCKED, reason)
        return AttemptOutcome.BLOCKED

    def interrupt(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        """Record the error that ends the process during attempts that were started together.

        The attempts stay counted: another worker continues when their lease expires.
        """
        reason = reason_of(error)
        self._log.interrupted(attempts, reason)
        try:
            self._store.note(attempts, reason=storable(f"ended its process: {reason}"))
        except Exception as failure:  # noqa: BLE001  it is logged, and the process ends
            self._log.interruption_not_recorded(attempts, failure)

    def forget(self) -> None:
        """Forget the start times of attempts without an outcome: repeated alone, or lost."""
        self._timer.forget()

    def _defer(self, attempt: Attempt, error: UnknownSchemaVersion) -> AttemptOutcome:
        """Let an event wait for a release that can read it, without a counted attempt.

        A deployment in the wrong order must not give up events.
        """
        reason = storable(str(error))
        with self._logged_if_not_recorded(attempt, reason):
            kept = self._store.defer(attempt, delay=UNREADABLE_WAIT, reason=reason)
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.unreadable(attempt, delay=UNREADABLE_WAIT, reason=reason)
        return AttemptOutcome.BLOCKED

    def _is_of_paused_handler(self, attempt: Attempt, handler: Handler, error: Exception) -> bool:
        """Whether the failure does not count: the handler is paused, perhaps because of it."""
        if failure_kinds.is_expected(error, handler):
            self._breaker.declared(attempt)
            return False
        if failure_kinds.is_final(error, handler):
            return False
        site = failure_kinds.site_of(error, handler)
        reason = failure_kinds.failure_reason(error, handler)
        with self._logged_if_not_recorded(attempt, reason):
            return self._breaker.takes_back(attempt, error, raise_site=site, reason=reason)

    def _take_back(self, attempt: Attempt, handler: Handler, error: Exception) -> AttemptOutcome:
        """Let an event wait until its handler is resumed, without a counted attempt."""
        reason = failure_kinds.failure_reason(error, handler)
        with self._logged_if_not_recorded(attempt, reason):
            kept = self._store.defer(attempt, delay=timedelta(0), reason=reason)
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.taken_back(attempt, error, reason)
        return AttemptOutcome.BLOCKED

    def _retry_or_give_up(
        self, attempt: Attempt, handler: Handler, error: Exception
    ) -> AttemptOutcome:
        reason = failure_kinds.failure_reason(error, handler)
        delay = handler.retry.delay_after(attempt.number, error)
        if delay is None or failure_kinds.is_final(error, handler):
            return self._give_up(attempt, handler, reason, error)
        self._log.handler_failed(attempt, error, reason)
        with self._logged_if_not_recorded(attempt, reason):
            kept = self._store.postpone(attempt, delay=delay, reason=reason)
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.failed(attempt, error, delay=delay, reason=reason)
        return AttemptOutcome.RETRIED

    def _give_up(
        self, attempt: Attempt, handler: Handler, reason: str, error: Exception | None = None
    ) -> AttemptOutcome:
        """End the attempts: with the ROLLBACK event in the same transaction, or as DEAD."""
        traceback = failure_kinds.traceback_of(error)
        if attempt.envelope.kind is TxKind.ROLLBACK:
            came_too_late = isinstance(error, CameTooLate)
            return self._bury(attempt, reason, traceback, came_too_late=came_too_late)
        if handler.parks and (error is None or not failure_kinds.is_final(error, handler)):
            return self._park(attempt, reason, traceback)
        # Without the raising line: the files of this service do not concern the upstream one.
        sent = reason if error is None else reason_with_leaves(error)
        rollback = self._outbox.rollback_of(attempt.envelope, reason=sent)
        deliberate = error is not None and failure_kinds.is_refusal(error, handler)
        return self._refuse(attempt, rollback, reason, traceback, is_deliberate=deliberate)

    def _refuse(
        self,
        attempt: Attempt,
        rollback: Envelope,
        reason: str,
        traceback: BaseException | None,
        *,
        is_deliberate: bool,
    ) -> AttemptOutcome:
        """Give an event up, and write its ROLLBACK event."""
        with self._logged_if_not_recorded(attempt, reason, traceback):
            kept = self._store.give_up(
                attempt,
                reason=reason,
                in_transaction=lambda session: self._outbox.add_envelope(session, rollback),
            )
        if not kept:
            return self._taken_over(attempt, reason)
        if is_deliberate:
            self._log.refused(attempt, reason, traceback)
        else:
            self._log.given_up(attempt, reason, traceback)
        return AttemptOutcome.REFUSED

    def _park(
        self, attempt: Attempt, reason: str, traceback: BaseException | None
    ) -> AttemptOutcome:
        """Give an event up without its ROLLBACK event: it is DEAD, and an operator decides."""
        with self._logged_if_not_recorded(attempt, reason, traceback):
            kept = self._store.give_up(attempt, reason=reason, in_transaction=None, parked=True)
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.parked(attempt, reason, traceback)
        return AttemptOutcome.DEAD

    def _bury(
        self,
        attempt: Attempt,
        reason: str,
        traceback: BaseException | None,
        *,
        came_too_late: bool,
    ) -> AttemptOutcome:
        """Give a rollback up: it is DEAD, and an operator decides."""
        close = partial(self._compensation.close, attempt=attempt)
        with self._logged_if_not_recorded(attempt, reason, traceback):
            kept = self._store.give_up(
                attempt, reason=reason, in_transaction=close if came_too_late else None
            )
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.dead(attempt, reason, traceback)
        return AttemptOutcome.DEAD

    @contextmanager
    def _logged_if_not_recorded(
        self, attempt: Attempt, reason: str, traceback: BaseException | None = None
    ) -> Iterator[None]:
        """Log the failure of an attempt if the database does not confirm that it is written.

        The pass ends with the error, and the next attempt does not know the reason of this one.
        """
        try:
            yield
        except EventUnfinished:
            raise
        except Exception:
            self._log.not_recorded(attempt, reason, traceback)
            raise

    def _taken_over(self, attempt: Attempt, reason: str) -> AttemptOutcome:
        """Log that the failure of an attempt is not written: the row has another owner."""
        self._log.lost(attempt, f"taken over before its failure was written: {reason}")
        return AttemptOutcome.LOST
