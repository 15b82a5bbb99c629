"""The inbox: one received event's way from its attempt to effect, compensation or giving up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial

from sqlalchemy.orm import Session

from shieldtx.errors import HandlerError, LeaseLost, NothingToCompensate, PayloadRefused
from shieldtx.events import Envelope, Event, storable
from shieldtx.handlers import ConsumerGroup, Handler
from shieldtx.hooks import Hooks
from shieldtx.outbox import Outbox, flush_events, handling
from shieldtx.payloads import decode_payload
from shieldtx.ports import Attempt, InboxStore
from shieldtx.states import InboxStatus, TxKind
from shieldtx.watch import Watch

log = logging.getLogger(__name__)

_HOPELESS = (PayloadRefused, NothingToCompensate)
"""Errors that no further attempt would change."""


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
    """Not its turn: its key waits, or another worker has it."""
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
    ) -> None:
        self._group = group
        self._store = store
        self._outbox = outbox
        self.watch = Watch(hooks or Hooks())
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
        run = self._apply if envelope.kind is TxKind.COMMIT else self._compensate
        self.watch.begin([attempt])
        try:
            verdict = run(attempt, handler)
        except LeaseLost as lost:
            log.warning("%s", lost)
            self.watch.fail(attempt, Verdict.LOST.name, lost)
            return Verdict.LOST
        except Exception as error:  # noqa: BLE001  whatever a handler raises ends its attempt
            return self.fail(attempt, handler, error)
        self.watch.end([attempt], verdict.name)
        return verdict

    def fail(self, attempt: Attempt, handler: Handler, error: Exception) -> Verdict:
        """Write down that an attempt failed: it waits for its next one, or is given up."""
        verdict = self._ended_by(attempt, handler, error)
        self.watch.fail(attempt, verdict.name, error)
        return verdict

    def _ended_by(self, attempt: Attempt, handler: Handler, error: Exception) -> Verdict:
        reason = storable(f"{type(error).__name__}: {error}")
        delay = handler.retry.delay_after(attempt.number, error)
        if delay is None or isinstance(error, _HOPELESS):
            return self._give_up(attempt, reason)
        log.info(
            "attempt %d at %s %s failed, next in %.1f s: %s",
            attempt.number,
            attempt.envelope.type,
            attempt.envelope.id,
            delay.total_seconds(),
            reason,
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
        handling(session, event if cause is None else cause.opened(None))
        call: Callable[[], None] = partial(_run, handler, session, event)
        for interceptor in reversed(self._group.interceptors):
            call = partial(interceptor, session, event, call)
        call()
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
        """Take back what the rollback names: from this service's own tables, and once only."""
        with self._store.effect(attempt) as session:
            own = attempt.envelope.causation_source in {self._outbox.source, None}
            original = self._store.original(session, attempt, own=own)
            if original is None:
                return self._without_original(session, attempt, own=own)
            if original.compensated or original.status in _NOT_APPLIED:
                return Verdict.MOOT
            self.call(session, handler, original.envelope, cause=attempt.envelope)
            self._store.mark_compensated(session, attempt)
            if own:
                self._pass_on(session, original.envelope, attempt)
        return Verdict.COMPENSATED

    def _without_original(self, session: Session, attempt: Attempt, *, own: bool) -> Verdict:
        """Nothing is compensated that never happened here."""
        envelope = attempt.envelope
        if own:
            raise NothingToCompensate(
                f"the rollback {envelope.id} names event {envelope.causation_id}, which is not in "
                "this service's outbox: purged, or never written"
            )
        if not self._store.fence(session, attempt):
            raise HandlerError(
                "the event of this rollback has just come; the rollback waits for it"
            )
        return Verdict.MOOT

    def _pass_on(self, session: Session, undone: Envelope, attempt: Attempt) -> None:
        """Take back the event whose handler wrote the undone one: a chain goes back in order."""
        cause = self._store.cause(session, undone)
        if cause is not None:
            reason = f"{undone.type} {undone.id} was taken back by {attempt.envelope.source}"
            self._outbox.add_envelope(session, self._outbox.rollback_of(cause, reason=reason))

    def _give_up(self, attempt: Attempt, reason: str) -> Verdict:
        """End the attempts: with the ROLLBACK event in the same transaction, or as DEAD."""
        envelope = attempt.envelope
        if envelope.kind is TxKind.ROLLBACK:
            log.error("compensation of %s %s is dead: %s", envelope.type, envelope.id, reason)
            kept = self._store.give_up(attempt, reason=reason, also=None)
            return Verdict.DEAD if kept else Verdict.LOST
        log.warning(
            "group %s gives up %s %s at attempt %d: %s",
            self._group.name,
            envelope.type,
            envelope.id,
            attempt.number,
            reason,
        )
        rollback = self._outbox.rollback_of(envelope, reason=reason)
        kept = self._store.give_up(
            attempt,
            reason=reason,
            also=lambda session: self._outbox.add_envelope(session, rollback),
        )
        return Verdict.REFUSED if kept else Verdict.LOST


_NOT_APPLIED = {InboxStatus.MAX_RECONSUMED, InboxStatus.FENCED}


def opened(handler: Handler, envelope: Envelope) -> Event:
    """Return the event as its handler receives it; raises PayloadRefused."""
    return envelope.opened(decode_payload(handler.payload, envelope.payload))


def _run(handler: Handler, session: Session, given: Event | Sequence[Event]) -> None:
    handler.function(session, given)
    session.flush()
    flush_events(session)
