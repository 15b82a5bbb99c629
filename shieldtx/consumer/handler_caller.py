"""Calls a handler on an event, inside the transaction of the event's attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy.orm import Session

from shieldtx._coroutines import run_coroutine
from shieldtx.consumer.failures import let_fail
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.interception import intercept
from shieldtx.domain.callables import run_for_effect
from shieldtx.domain.events import Envelope, Event, reason_of_rollback
from shieldtx.errors import PayloadRefused
from shieldtx.outbox.causation import handling, handling_is_over
from shieldtx.outbox.session_events import flush_events
from shieldtx.ports.inbox import Attempt, InboxStore
from shieldtx.ports.meters import AttemptMeter


class HandlerCaller:
    """Calls the handlers of one group, inside the group's interceptors."""

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        meter: AttemptMeter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._group = group
        self._store = store
        self._meter = meter
        self._clock = clock

    def call(
        self,
        session: Session,
        handler: Handler,
        attempt: Attempt,
        *,
        original: Envelope | None = None,
    ) -> None:
        """Call a handler on an attempt's event, or on the `original` that its rollback takes back.

        Events that the handler writes name the attempt's event as their cause.
        Writes that the handler leaves pending in the session fail here, as the handler's failure.
        """
        event = opened(handler, original or attempt.envelope, attempt.number)
        if original is not None:
            event = replace(event, reason=reason_of_rollback(attempt.envelope))
        if handler.takes_list:
            self.call_with_list(session, handler, [event], attempt.envelope)
            return
        # Without its payload: a closed session is in a reference cycle, which is collected late.
        handling(session, attempt.envelope.opened(None))
        call: Callable[[], None] = partial(_run, handler, session, event)
        if self._group.interceptors:
            call = partial(self._run_noted, handler, session, event)
        for interceptor in reversed(self._group.interceptors):
            call = partial(intercept, interceptor, session, event, call)
        self._measure(attempt.envelope, call)
        if self._group.interceptors:
            # Writes of an interceptor after `proceed()` belong to the event too.
            _flush(session)
        self._end_call(session)

    def call_with_list(
        self, session: Session, handler: Handler, events: Sequence[Event], first: Envelope
    ) -> None:
        """Call a handler that takes a list; an event that it adds names its cause, or has none.

        `first` is the envelope of the first of the events.
        """
        handling(session, *(replace(event, payload=None) for event in events), is_list=True)
        self._measure(first, partial(_run, handler, session, events))
        self._end_call(session)

    def _measure(self, event: Envelope, call: Callable[[], None]) -> None:
        """Make the call, and let the meter count it."""
        if self._meter is None:
            let_fail(call)
            return
        began = self._clock()
        try:
            let_fail(call)
        except BaseException as error:
            self._meter.called(event, took=self._clock() - began, error=error)
            raise
        self._meter.called(event, took=self._clock() - began)

    def _run_noted(self, handler: Handler, session: Session, event: Event) -> None:
        _run(handler, session, event)
        self._store.note_effect(session)

    def _end_call(self, session: Session) -> None:
        handling_is_over(session)
        self._store.reset_session(session)


class UnfitPayload(PayloadRefused):
    """The payload of an event in the inbox, or the type that the handler has for it."""


def opened(handler: Handler, envelope: Envelope, attempt: int) -> Event:
    """Return the event as its handler receives it at an attempt.

    Raises UnfitPayload, UnknownSchemaVersion and UpcastFailed.
    """
    try:
        payload = handler.upcasters.read(handler.payload, envelope, handler.version)
    except PayloadRefused as refused:
        # The handler's own events may be refused too, which is a normal failure.
        unfit = UnfitPayload(refused.field, refused.problem)
        unfit.raised_by = refused.raised_by
        raise unfit from refused.__cause__
    return envelope.opened(payload, attempt=attempt, max_attempts=handler.retry.max_attempts)


def _run(handler: Handler, session: Session, given: Event | Sequence[Event]) -> None:
    call = run_coroutine if handler.is_coroutine else run_for_effect
    call(handler.function, session, given)
    _flush(session)


def _flush(session: Session) -> None:
    """Send pending writes, so that they fail here and not in the attempt at another event."""
    session.flush()
    flush_events(session)
