"""Processes one event of the inbox in an individual attempt: effect, compensation or failure."""

from __future__ import annotations

import logging
from collections.abc import Callable

from shieldtx.consumer.attempt_log import AttemptLog
from shieldtx.consumer.attempt_recorder import AttemptRecorder
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.compensation import Compensation, EventUnfinished, KeptFor
from shieldtx.consumer.handler import Handler
from shieldtx.consumer.handler_caller import HandlerCaller
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.events import Envelope
from shieldtx.domain.log_fields import event_fields
from shieldtx.domain.states import TxKind
from shieldtx.errors import LeaseLost
from shieldtx.hooks.attempt_timer import AttemptTimer
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.inbox import Attempt, AttemptOutcome, InboxStore
from shieldtx.ports.meters import AttemptMeter

log = logging.getLogger(__name__)


class EventProcessor:
    """Makes attempts at single events of one group that are in the inbox."""

    def __init__(
        self,
        *,
        group: ConsumerGroup,
        store: InboxStore,
        outbox: Outbox,
        hooks: Hooks | None = None,
        kept_for: KeptFor = KeptFor(),  # noqa: B008  immutable
        handled_elsewhere: Callable[[str], bool] = lambda _: False,
        log: AttemptLog | None = None,
        breaker: Breaker | None = None,
        meter: AttemptMeter | None = None,
    ) -> None:
        """Process events through the ports; the processors of a worker share its `breaker`.

        For `handled_elsewhere`, see `Compensation`; for `log`, `AttemptRecorder`. A `meter` counts
        calls and outcomes.
        """
        self.breaker = breaker or Breaker(group=group.name)
        self._group = group
        self.store = store
        self.caller = HandlerCaller(group=group, store=store, meter=meter)
        self._compensation = Compensation(
            group=group,
            store=store,
            outbox=outbox,
            caller=self.caller,
            kept_for=kept_for,
            handled_elsewhere=handled_elsewhere,
        )
        self.recorder = AttemptRecorder(
            group=group,
            store=store,
            outbox=outbox,
            compensation=self._compensation,
            timer=AttemptTimer(hooks or Hooks(), meter=meter),
            log=log,
            breaker=self.breaker,
        )

    def process(self, envelope: Envelope, *, is_probe: bool = False) -> AttemptOutcome:
        """Make an attempt at an event: count the attempt, call the handler, record the outcome.

        An event of a paused handler gets only the attempt of a probe, which does not count when it
        fails, or ends with its process.

        Errors of the database are raised; the event then stays unchanged until its lease expires.
        """
        handler = self._group.handler_of(envelope.type, envelope.kind)
        if handler is None:
            # An earlier release with a handler received the event, which waits for such a release.
            log.warning(
                "received event has no handler",
                extra={
                    "action": "handler_missing",
                    "group": self._group.name,
                    **event_fields(envelope),
                },
            )
            return AttemptOutcome.BLOCKED
        if not is_probe and self.breaker.is_paused((envelope.type, envelope.kind)):
            return AttemptOutcome.BLOCKED
        attempt = self.store.start_attempt(
            self._group.name,
            envelope,
            lease=handler.lease,
            max_attempts=handler.retry.max_attempts,
            is_probe=is_probe,
        )
        if attempt is None:
            return AttemptOutcome.BLOCKED
        # The last attempt may have died with a process that was not repaired yet.
        if attempt.exhausted and not is_probe:
            return self.recorder.exhaust(attempt, handler)
        return self._make(attempt, handler)

    def _make(self, attempt: Attempt, handler: Handler) -> AttemptOutcome:
        is_commit = attempt.envelope.kind is TxKind.COMMIT
        self.recorder.begin([attempt])
        try:
            outcome = (self._apply if is_commit else self._compensate)(attempt, handler)
        except LeaseLost as reason:
            return self.recorder.lose(attempt, reason)
        except EventUnfinished as reason:
            return self.recorder.wait(attempt, reason)
        except Exception as error:  # noqa: BLE001  whatever a handler raises ends its attempt
            return self.recorder.fail(attempt, handler, error)
        except BaseException as error:
            self.recorder.interrupt([attempt], error)
            raise
        return self.recorder.succeed([attempt], outcome)

    def _apply(self, attempt: Attempt, handler: Handler) -> AttemptOutcome:
        with self.store.effect(attempt) as session:
            self.caller.call(session, handler, attempt)
        return AttemptOutcome.APPLIED

    def _compensate(self, attempt: Attempt, handler: Handler) -> AttemptOutcome:
        is_compensated = self._compensation.run(attempt, handler)
        return AttemptOutcome.COMPENSATED if is_compensated else AttemptOutcome.MOOT
