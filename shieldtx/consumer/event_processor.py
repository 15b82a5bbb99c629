"""The inbox: one received event's way from its attempt to effect, compensation or giving up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum, auto
from functools import partial

from sqlalchemy.orm import Session

from shieldtx.consumer.compensation import CameTooLate, Compensation, EventUnfinished
from shieldtx.consumer.handlers import ConsumerGroup, Handler, Interceptor
from shieldtx.domain.callables import run
from shieldtx.domain.events import Envelope, Event, storable
from shieldtx.domain.payloads import decode_payload
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable, reason_of
from shieldtx.domain.states import TxKind
from shieldtx.errors import HandlerError, LeaseLost, NothingToCompensate, PayloadRefused, Refused
from shieldtx.hooks.attempt_timer import AttemptTimer
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.causation import handling
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.session_events import flush_events
from shieldtx.ports.inbox import Attempt, InboxStore

log = logging.getLogger(__name__)

_HOPELESS = (PayloadRefused, NothingToCompensate)
"""Errors that no further attempt would change."""

_EXPECTED = (Refused, *_HOPELESS)
"""Errors that say all in their message: a traceback would add nothing."""


class Verdict(Enum):
    """How one turn of an event ended."""

    APPLIED = auto()
    """Its effect is committed."""
    COMPENSATED = auto()
    """A rollback's compensation is committed."""
    MOOT = auto()
    """A rollback with nothing to take back: compensated before, never applied, or fenced."""
    RETRIED = auto()
    """The attempt failed; another one follows."""
    REFUSED = auto()
    """Given up, and the ROLLBACK event is on its way."""
    DEAD = auto()
    """A compensation that failed for good waits for a person."""
    HELD = auto()
    """Not its turn: its key or its event waits, or another worker has it."""
    LOST = auto()
    """Another worker took it over in the middle."""


class Inbox:
    """Runs the handlers of one group on events that are in the inbox."""

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        outbox: Outbox,
        hooks: Hooks | None = None,
        kept_for: timedelta | None = None,
    ) -> None:
        """Run them by way of the ports.

        Settled rows are purged from the inbox after `kept_for` at the earliest; None: never.
        """
        self._group = group
        self._store = store
        self._outbox = outbox
        self._compensation = Compensation(
            group=group, store=store, outbox=outbox, call=self.call, kept_for=kept_for
        )
        self.watch = AttemptTimer(hooks or Hooks())
        """Is told of each attempt, here and by whoever applies several together."""

    def work(self, envelope: Envelope) -> Verdict:
        """Give an event its turn: count the attempt, run the handler, write down how it ended.

        Errors of the database are raised; the event then stays as it is until its lease runs out.
        """
        handler = self._group.handler_of(envelope.type, envelope.kind)
        if handler is None:
            # Received by an earlier release that had a handler: it waits for one that has it again.
            log.warning("no handler for %s of %s any more", envelope.kind, envelope.type)
            return Verdict.HELD
        attempt = self._store.start_attempt(
            self._group.name,
            envelope,
            lease=handler.lease,
            max_attempts=handler.retry.max_attempts,
        )
        if attempt is None:
            return Verdict.HELD
        if attempt.exhausted:
            reason = "the last attempt ended with its process"
            verdict = self._give_up(attempt, reason)
            self.watch.fail(attempt, verdict.name, reason)
            return verdict
        turn = self._apply if envelope.kind is TxKind.COMMIT else self._compensate
        self.watch.begin([attempt])
        try:
            verdict = turn(attempt, handler)
        except (LeaseLost, EventUnfinished) as reason:
            return self._leave(attempt, reason)
        except Exception as error:  # noqa: BLE001  whatever a handler raises ends its attempt
            return self.fail(attempt, handler, error)
        except BaseException as error:
            self.note_end([attempt], error)
            raise
        self.watch.end([attempt], verdict.name)
        return verdict

    def _leave(self, attempt: Attempt, reason: LeaseLost | EventUnfinished) -> Verdict:
        """Leave a row to the worker that took it over, or until its event is settled."""
        if isinstance(reason, LeaseLost):
            log.warning("%s", reason)
            verdict = Verdict.LOST
        else:
            log.info("%s", reason)
            self._store.release([attempt])
            verdict = Verdict.HELD
        self.watch.fail(attempt, verdict.name, reason)
        return verdict

    def fail(self, attempt: Attempt, handler: Handler, error: Exception) -> Verdict:
        """Write down that an attempt failed: it waits for its next one, or is given up."""
        try:
            verdict = self._ended_by(attempt, handler, error)
        except EventUnfinished as reason:
            return self._leave(attempt, reason)
        self.watch.fail(attempt, verdict.name, error)
        return verdict

    def note_end(self, attempts: Sequence[Attempt], error: BaseException) -> None:
        """Write down what ends the process in the middle of attempts that were started together.

        They stay counted: another worker goes on when their lease runs out.
        """
        reason = reason_of(error)
        log.critical("the process ends in the middle of %d attempts: %s", len(attempts), reason)
        try:
            self._store.note(attempts, reason=storable(f"ended its process: {reason}"))
        except Exception as failure:
            told = loggable(failure)
            log.exception("why the process ends could not be written down", exc_info=told)

    def _ended_by(self, attempt: Attempt, handler: Handler, error: Exception) -> Verdict:
        reason = storable(reason_of(error))
        delay = handler.retry.delay_after(attempt.number, error)
        if delay is None or isinstance(error, _HOPELESS):
            return self._give_up(attempt, reason, error)
        log.info(
            "attempt %d at %s %s failed, next in %.1f s: %s",
            attempt.number,
            attempt.envelope.type,
            attempt.envelope.id,
            delay.total_seconds(),
            reason,
            exc_info=loggable(error) if log.isEnabledFor(logging.DEBUG) else None,
        )
        kept = self._store.postpone(attempt, delay=delay, reason=reason)
        return Verdict.RETRIED if kept else Verdict.LOST

    def call(
        self,
        session: Session,
        handler: Handler,
        envelope: Envelope,
        *,
        cause: Envelope | None = None,
    ) -> None:
        """Run the handler on one event inside the group's interceptors.

        `cause` is what events written meanwhile name as theirs, by default the event itself. What
        the handler leaves undone in the session fails here, as its own failure.
        """
        event = opened(handler, envelope)
        if handler.takes_list:
            self.call_with_list(session, handler, [event])
            return
        # Without its payload: a closed session is a circle, which the garbage collector finds late.
        handling(session, (cause or envelope).opened(None))
        call: Callable[[], None] = partial(_run, handler, session, event)
        for interceptor in reversed(self._group.interceptors):
            call = partial(_intercept, interceptor, session, event, call)
        call()
        if self._group.interceptors:
            # What one of them wrote behind `proceed()` is the event's too.
            _flush(session)
        self._store.clear(session)

    def call_with_list(self, session: Session, handler: Handler, events: Sequence[Event]) -> None:
        """Run a handler that takes a list; which of the events causes what, only it can tell."""
        handling(session, None)
        _run(handler, session, events)
        self._store.clear(session)

    def _apply(self, attempt: Attempt, handler: Handler) -> Verdict:
        with self._store.effect(attempt) as session:
            self.call(session, handler, attempt.envelope)
        return Verdict.APPLIED

    def _compensate(self, attempt: Attempt, handler: Handler) -> Verdict:
        done = self._compensation.run(attempt, handler)
        return Verdict.COMPENSATED if done else Verdict.MOOT

    def _give_up(self, attempt: Attempt, reason: str, error: Exception | None = None) -> Verdict:
        """End the attempts: with the ROLLBACK event in the same transaction, or as DEAD."""
        envelope = attempt.envelope
        traceback = None
        if error is not None and not isinstance(error, _EXPECTED):
            traceback = loggable(error)
        if envelope.kind is TxKind.ROLLBACK:
            log.error(
                "compensation of %s %s is dead: %s",
                envelope.type,
                envelope.id,
                reason,
                exc_info=traceback,
                extra=WITH_TRACEBACK,
            )
            close = partial(self._compensation.close, attempt=attempt)
            also = close if isinstance(error, CameTooLate) else None
            kept = self._store.give_up(attempt, reason=reason, also=also)
            return Verdict.DEAD if kept else Verdict.LOST
        log.warning(
            "group %s gives up %s %s at attempt %d: %s",
            self._group.name,
            envelope.type,
            envelope.id,
            attempt.number,
            reason,
            exc_info=traceback,
            extra=WITH_TRACEBACK,
        )
        rollback = self._outbox.rollback_of(envelope, reason=reason)
        kept = self._store.give_up(
            attempt,
            reason=reason,
            also=lambda session: self._outbox.add_envelope(session, rollback),
        )
        return Verdict.REFUSED if kept else Verdict.LOST


def opened(handler: Handler, envelope: Envelope) -> Event:
    """Return the event as its handler receives it; raises PayloadRefused."""
    return envelope.opened(decode_payload(handler.payload, envelope.payload))


def _intercept(
    interceptor: Interceptor, session: Session, event: Event, call: Callable[[], None]
) -> None:
    """Run an interceptor; raises HandlerError when it keeps the handler from being called."""
    calls = 0

    def proceed() -> None:
        nonlocal calls
        calls += 1
        call()

    run(interceptor, session, event, proceed)
    if not calls:
        name = getattr(interceptor, "__qualname__", repr(interceptor))
        raise HandlerError(
            f"the interceptor {name} returned without calling proceed(), so the handler has not "
            "run. Call it, or raise shieldtx.Refused for an event that is not to be handled"
        )


def _run(handler: Handler, session: Session, given: Event | Sequence[Event]) -> None:
    run(handler.function, session, given)
    _flush(session)


def _flush(session: Session) -> None:
    """Send what waits in the session, so that it fails here and not in another event's turn."""
    session.flush()
    flush_events(session)
