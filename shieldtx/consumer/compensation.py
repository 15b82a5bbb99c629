"""Compensation: takes an event back, once, according to this service's own tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handler_caller import HandlerCaller
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Envelope, age_of, reason_of_rollback
from shieldtx.domain.log_fields import cause_fields, event_fields
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.errors import NothingToCompensate
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.inbox import Attempt, InboxStore, Original

log = logging.getLogger(__name__)

_NOT_APPLIED = {
    InboxStatus.MAX_RECONSUMED,
    InboxStatus.FENCED,
    InboxStatus.DISCARDED,
}
SURE: Final = 0.9
"""The part of the retention within which a settled row exists, whatever the clocks are."""

_UNFINISHED = {InboxStatus.INIT, InboxStatus.PROCESSING}


class EventUnfinished(Exception):
    """The event of a rollback is in the inbox and not settled: the rollback waits for it."""


class CameTooLate(NothingToCompensate):
    """The event of a rollback may have been applied and purged, or it may never have come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptFor:
    """How long settled rows are not purged; None: never."""

    inbox: timedelta | None = None
    outbox: timedelta | None = None


class Compensation:
    """Compensates the events that the rollbacks of one group name."""

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        outbox: Outbox,
        caller: HandlerCaller,
        kept_for: KeptFor,
        handled_elsewhere: Callable[[str], bool] = lambda _: False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Compensate with the handlers of `group`, called by `caller`.

        `handled_elsewhere` returns whether another group of the service handles an event type.
        """
        self._group = group
        self._store = store
        self._outbox = outbox
        self._caller = caller
        self._kept_for = kept_for
        self._handled_elsewhere = handled_elsewhere
        self._wall_clock = wall_clock

    def run(self, attempt: Attempt, handler: Handler) -> bool:
        """Compensate the event of a rollback in one transaction with the rollback's PROCESSED.

        Returns False when there is nothing to compensate: already compensated, or never applied
        here. Raises EventUnfinished, without a change, when the group has yet to handle the event;
        NothingToCompensate when the event is missing.
        """
        with self._store.effect(attempt) as session:
            original = self._store.original(session, attempt, written_here=True)
            if original is not None and self._outbox.owns(original.envelope):
                return self._take_back_own(session, attempt, handler, original)
            self._refuse_without_event(attempt)
            original = self._store.original(session, attempt, written_here=False)
            if original is None:
                if self._is_of_another_writer(session, attempt):
                    return False
                self._refuse_late(attempt)
                self._fence(session, attempt)
                return False
            if original.envelope.causation_id == attempt.envelope.id:
                # The rollback's own tombstone: the rollback was DEAD, and an operator replays it.
                self._refuse_late(attempt)
            if original.status is InboxStatus.DEAD:
                self._fence_parked(session, attempt)
                return False
            if original.compensated or original.status in _NOT_APPLIED:
                return False
            if original.status in _UNFINISHED:
                raise _unfinished(attempt)
            self._take_back(session, attempt, handler, original)
        return True

    def _take_back_own(
        self, session: Session, attempt: Attempt, handler: Handler, original: Original
    ) -> bool:
        if original.compensated:
            return False
        self._stop_effect(session, attempt, original)
        self._take_back(session, attempt, handler, original)
        self._pass_on(session, original.envelope, attempt)
        return True

    def _take_back(
        self, session: Session, attempt: Attempt, handler: Handler, original: Original
    ) -> None:
        # Stamped before the handler runs: an effect that is settled later came too late.
        self._store.mark_compensated(session, attempt)
        self._caller.call(session, handler, attempt, original=original.envelope)

    def _stop_effect(self, session: Session, attempt: Attempt, original: Original) -> None:
        """Prevent a later effect where the group handles its service's own event."""
        envelope = original.envelope
        if self._group.handler_of(envelope.type, TxKind.COMMIT) is None:
            return
        named = attempt.envelope.evolve(causation_source=envelope.source)
        attempt = attempt._replace(envelope=named)
        received = self._store.original(session, attempt, written_here=False)
        if received is None:
            self._fence(session, attempt)
        elif received.status in _UNFINISHED:
            raise _unfinished(attempt)
        elif received.status is InboxStatus.DEAD:
            self._fence_parked(session, attempt)

    def _fence_parked(self, session: Session, attempt: Attempt) -> None:
        """Withdraw a parked event from the operators: a replay would apply it after its end."""
        self._store.fence_parked(session, attempt)
        log.info(
            "rollback ends a parked event",
            extra={
                "action": "parked_event_taken_back",
                "group": attempt.group,
                **event_fields(attempt.envelope),
                **cause_fields(attempt.envelope),
            },
        )

    def close(self, session: Session, attempt: Attempt) -> None:
        """Refuse the event of a rollback that came too late, if the event still arrives.

        Raises EventUnfinished when the event has arrived meanwhile.
        """
        if not self._store.fence(session, attempt):
            original = self._store.original(session, attempt, written_here=False)
            if original is not None and original.status is not InboxStatus.FENCED:
                raise _unfinished(attempt)

    def _fence(self, session: Session, attempt: Attempt) -> None:
        """Refuse the event when it arrives."""
        rollback = attempt.envelope
        if not self._store.fence(session, attempt):
            if self._store.original(session, attempt, written_here=False) is not None:
                raise _unfinished(attempt)
            raise NothingToCompensate(
                f"the rollback {rollback.id} names {rollback.causation_id} of "
                f"{rollback.causation_source}, which is a rollback itself: nothing takes one back"
            )
        log.info(
            "rollback came before its event",
            extra={
                "action": "rollback_before_event",
                "group": attempt.group,
                **event_fields(rollback),
                **cause_fields(rollback),
            },
        )

    def _refuse_without_event(self, attempt: Attempt) -> None:
        """Raise NothingToCompensate unless the event may be in the inbox, or may still arrive."""
        rollback = attempt.envelope
        event_id, source = rollback.causation_id, rollback.causation_source
        if event_id is None:
            raise NothingToCompensate(f"the rollback {rollback.id} names no event")
        if source in {self._outbox.source, None}:
            raise NothingToCompensate(
                f"the rollback {rollback.id} names event {event_id}, which is not in "
                "this service's outbox: purged, or never written"
            )

    def _is_of_another_writer(self, session: Session, attempt: Attempt) -> bool:
        """Whether another service that also publishes the type must take the event back.

        Raises NothingToCompensate where the group, which never receives the event, cannot know.
        """
        rollback = attempt.envelope
        if self._group.handler_of(rollback.type, TxKind.COMMIT) is not None:
            return False
        event = f"event {rollback.causation_id} of {rollback.causation_source}"
        # In either order: the rollback may have overtaken its event.
        may_be_applied = (
            not self._outbox.declares(rollback.type)
            or self._handled_elsewhere(rollback.type)
            or self._store.cause(session, rollback) is not None
        )
        if may_be_applied:
            raise NothingToCompensate(
                f"the rollback {rollback.id} names {event}, and group {attempt.group!r} has no "
                f"handler for {rollback.type}: what another group has applied is not in its inbox. "
                "Declare `handles` and `compensates` of a type in one group"
            )
        kept_for = self._kept_for.outbox
        if why := self._may_be_purged(rollback.causation_id, kept_for):
            raise NothingToCompensate(
                f"the rollback {rollback.id} comes too late: {event} {why}, and rows are purged "
                f"here (SHIELDTX_RETENTION_OUTBOX is {kept_for}). If this service has written the "
                "event, under another name than today's, undo it by hand"
            )
        log.info(
            "rollback names another service's event",
            extra={
                "action": "rollback_of_other_service",
                "group": attempt.group,
                **event_fields(rollback),
                **cause_fields(rollback),
            },
        )
        return True

    def _refuse_late(self, attempt: Attempt) -> None:
        """Raise CameTooLate for an event that may have been applied here and purged."""
        rollback = attempt.envelope
        if why := self._may_be_purged(rollback.causation_id, self._kept_for.inbox):
            raise CameTooLate(
                f"the rollback {rollback.id} comes too late: event {rollback.causation_id} of "
                f"{rollback.causation_source} {why}, and rows are purged here "
                f"(SHIELDTX_RETENTION_INBOX is {self._kept_for.inbox}). Find out whether "
                f"group {attempt.group!r} had applied the event, and undo it by hand"
            )

    def _pass_on(self, session: Session, undone: Envelope, attempt: Attempt) -> None:
        """Take back the event whose handler wrote the undone event: a chain is undone in order.

        The chain ends with an event that a compensation wrote: a rollback is never taken back.
        """
        cause = self._store.cause(session, undone)
        if cause is not None and cause.kind is TxKind.ROLLBACK:
            return
        if cause is not None:
            taken_back = f"{undone.type} {undone.id} was taken back by {attempt.envelope.source}"
            reason = ": ".join(filter(None, (taken_back, reason_of_rollback(attempt.envelope))))
            self._outbox.add_envelope(session, self._outbox.rollback_of(cause, reason=reason))
        elif why := self._may_be_purged(undone.causation_id, self._kept_for.inbox):
            raise NothingToCompensate(
                f"{undone.type} {undone.id} was written because of event {undone.causation_id} of "
                f"{undone.causation_source}, which {why} and was perhaps purged here "
                f"(SHIELDTX_RETENTION_INBOX is {self._kept_for.inbox}): it cannot be taken back "
                "too. Undo both by hand"
            )

    def _may_be_purged(self, event_id: UUID | None, kept_for: timedelta | None) -> str | None:
        """Return why an event's settled row may have been purged; None: it cannot have been."""
        if event_id is None or kept_for is None:
            return None
        age = age_of(event_id, self._wall_clock())
        if age is None:
            return "may be of any age (its id is not a UUIDv7)"
        return f"is {age.days} days old" if age > kept_for * SURE else None


def _unfinished(attempt: Attempt) -> EventUnfinished:
    rollback = attempt.envelope
    return EventUnfinished(
        f"the rollback {rollback.id} waits for event {rollback.causation_id}, which the group "
        f"{attempt.group!r} has received and not settled"
    )
