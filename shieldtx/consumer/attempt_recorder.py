"""Records outcomes of attempts: failures in the inbox, and every outcome for the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from shieldtx.consumer.attempt_log import AttemptLog
from shieldtx.consumer.compensation import CameTooLate, Compensation, EventUnfinished
from shieldtx.consumer.handler_caller import UnfitPayload
from shieldtx.consumer.handlers import ConsumerGroup, Handler
from shieldtx.domain.error_groups import leaves_of, reason_with_leaves
from shieldtx.domain.events import storable
from shieldtx.domain.reasons import loggable, reason_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import LeaseLost, NothingToCompensate, Refused
from shieldtx.hooks.attempt_timer import AttemptTimer
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.inbox import Attempt, AttemptOutcome, InboxStore

_PERMANENT = (UnfitPayload, NothingToCompensate)
"""Errors that no further attempt would change."""

_EXPECTED = (Refused, *_PERMANENT)
"""Errors whose message is complete: a traceback would add nothing."""


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
    ) -> None:
        self._log = AttemptLog(group.name)
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
        return outcome

    def fail(self, attempt: Attempt, handler: Handler, error: Exception) -> AttemptOutcome:
        """Record that an attempt failed: the event is retried, or given up."""
        try:
            outcome = self._retry_or_give_up(attempt, handler, error)
        except EventUnfinished as reason:
            return self.wait(attempt, reason)
        self._timer.fail(attempt, outcome, error)
        return outcome

    def exhaust(self, attempt: Attempt) -> AttemptOutcome:
        """Record that the process died in the last attempt: the event is given up."""
        reason = "the last attempt ended with its process"
        outcome = self._give_up(attempt, reason)
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

    def _retry_or_give_up(
        self, attempt: Attempt, handler: Handler, error: Exception
    ) -> AttemptOutcome:
        reason = storable(reason_with_leaves(error))
        delay = handler.retry.delay_after(attempt.number, error)
        if delay is None or _is_final(error, handler):
            is_refusal = _is_refusal(error, handler)
            return self._give_up(attempt, reason, error, is_refusal=is_refusal)
        self._log.handler_failed(attempt, error, reason)
        if not self._store.postpone(attempt, delay=delay, reason=reason):
            return self._taken_over(attempt, reason)
        self._log.failed(attempt, delay=delay, reason=reason)
        return AttemptOutcome.RETRIED

    def _give_up(
        self,
        attempt: Attempt,
        reason: str,
        error: Exception | None = None,
        *,
        is_refusal: bool = False,
    ) -> AttemptOutcome:
        """End the attempts: with the ROLLBACK event in the same transaction, or as DEAD."""
        traceback = None
        if error is not None and not _all_are(_EXPECTED, error):
            traceback = loggable(error)
        if attempt.envelope.kind is TxKind.ROLLBACK:
            came_too_late = isinstance(error, CameTooLate)
            return self._bury(attempt, reason, traceback, came_too_late=came_too_late)
        return self._refuse(attempt, reason, traceback, is_refusal=is_refusal)

    def _refuse(
        self, attempt: Attempt, reason: str, traceback: BaseException | None, *, is_refusal: bool
    ) -> AttemptOutcome:
        """Give an event up, and write its ROLLBACK event."""
        rollback = self._outbox.rollback_of(attempt.envelope, reason=reason)
        kept = self._store.give_up(
            attempt,
            reason=reason,
            in_transaction=lambda session: self._outbox.add_envelope(session, rollback),
        )
        if not kept:
            return self._taken_over(attempt, reason)
        if is_refusal:
            self._log.refused(attempt, reason, traceback)
        else:
            self._log.given_up(attempt, reason, traceback)
        return AttemptOutcome.REFUSED

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
        kept = self._store.give_up(
            attempt, reason=reason, in_transaction=close if came_too_late else None
        )
        if not kept:
            return self._taken_over(attempt, reason)
        self._log.dead(attempt, reason, traceback)
        return AttemptOutcome.DEAD

    def _taken_over(self, attempt: Attempt, reason: str) -> AttemptOutcome:
        """Log that the failure of an attempt is not written: the row has another owner."""
        self._log.lost(attempt, f"taken over before its failure was written: {reason}")
        return AttemptOutcome.LOST


def _is_final(error: Exception, handler: Handler) -> bool:
    """Whether no further attempt would help; for a group of errors, with none of them."""
    return isinstance(error, _PERMANENT) or _is_refusal(error, handler)


def _is_refusal(error: Exception, handler: Handler) -> bool:
    """Whether the handler refuses the event, by an error that its retry policy declares."""
    kinds = handler.retry.give_up_on
    return isinstance(error, kinds) or _all_are(kinds, error)


def _all_are(kinds: tuple[type[BaseException], ...], error: Exception) -> bool:
    return all(isinstance(leaf, kinds) for leaf in leaves_of(error))
