"""Hooks: functions of the application that are called around each send and each attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from shieldtx.domain.callables import check_callable, name_of, run
from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import WITH_TRACEBACK, loggable
from shieldtx.hooks.contexts import ConsumeContext, SendContext, consume_context_of, send_context_of
from shieldtx.ports.broker import Delivery, DeliveryOutcome
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.relay import ClaimedEvent

log = logging.getLogger(__name__)


SendHook: TypeAlias = Callable[[SendContext], None]
ConsumeHook: TypeAlias = Callable[[ConsumeContext], None]

S = TypeVar("S", bound=SendHook)
C = TypeVar("C", bound=ConsumeHook)
H = TypeVar("H", bound=Callable[..., None])
Context = TypeVar("Context", SendContext, ConsumeContext)


class Hooks:
    """The hooks of an application: plain callables, called in the order of their registration.

    Each method registers one and returns it, so that it is a decorator too; it raises
    ConfigurationError for what is no plain function. What a hook may rely on:

    - It runs in the worker, in the thread that does the work: what it does delays the events behind
      it, and uses up their leases. It must be quick, and must not wait for anybody.
    - It is called at least once for what its name says, and again after a crash, a lost lease, or
      when the event comes again. A `before` may have no `after`: the process died, the time was up,
      or the event got another turn, which has a `before` of its own.
    - What it raises is logged, once a minute for each hook and kind of error. Neither the event nor
      the other hooks notice.
    - It has no part in any transaction. Business effects belong into handlers.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._before_send: list[SendHook] = []
        self._after_send: list[SendHook] = []
        self._on_send_error: list[SendHook] = []
        self._before_consume: list[ConsumeHook] = []
        self._after_consume: list[ConsumeHook] = []
        self._on_consume_error: list[ConsumeHook] = []
        self._lines = LogThrottle(clock=clock)

    # --- what an application registers ------------------------------------------------------------

    def before_send(self, hook: S) -> S:
        """Call it for each event that a relay is about to hand to the broker's client.

        The claim is committed. In the relay's thread, or in that which publishes beside it.
        """
        self._before_send.append(_plain(hook))
        return hook

    def after_send(self, hook: S) -> S:
        """Call it for each event that the broker has acknowledged, in the order of the batch.

        In the same thread, before PROCESSED is committed: after a crash in between, or when the
        lease is lost, the event is sent, and this called, once more.
        """
        self._after_send.append(_plain(hook))
        return hook

    def on_send_error(self, hook: S) -> S:
        """Call it for each event that was to be sent and was not acknowledged.

        As `after_send`, before it is written down what becomes of the event: whether it waits for
        another attempt, is given back, or fails for good.
        """
        self._on_send_error.append(_plain(hook))
        return hook

    def before_consume(self, hook: C) -> C:
        """Call it before the handler gets an event, in the thread of the consumer and its handlers.

        The attempt is counted and committed. Events that share a transaction are called for one by
        one, each right before its handler; those of a handler that takes a list, all before it.
        """
        self._before_consume.append(_plain(hook))
        return hook

    def after_consume(self, hook: C) -> C:
        """Call it for each event whose effect or compensation is committed, in the same thread.

        Of events that share a transaction, for all of them in their order, behind its commit. Of a
        process that dies right after the commit, the call is lost: the effect comes only once.
        """
        self._after_consume.append(_plain(hook))
        return hook

    def on_consume_error(self, hook: C) -> C:
        """Call it for each attempt that failed, in the same thread.

        Its transaction is rolled back by then, and it is committed what becomes of the event: its
        next attempt, or that it was given up.
        """
        self._on_consume_error.append(_plain(hook))
        return hook

    # --- what the workers call --------------------------------------------------------------------

    @property
    def has_send_hooks(self) -> bool:
        """Whether any hook has to do with sending; asked once a batch."""
        return bool(self._before_send or self._after_send or self._on_send_error)

    @property
    def watch_consuming(self) -> bool:
        """Whether any hook has to do with attempts; asked once a batch."""
        return bool(self._before_consume or self._after_consume or self._on_consume_error)

    def sending(self, claims: Sequence[ClaimedEvent], *, waited: float) -> None:
        """Tell that events are about to be sent, so many seconds after their claim."""
        if self._before_send:
            for claimed in claims:
                self._call(self._before_send, send_context_of(claimed, waited))

    def sent(
        self,
        claims: Sequence[ClaimedEvent],
        deliveries: Sequence[Delivery],
        *,
        waited: float,
        took: float,
    ) -> None:
        """Tell how they ended."""
        for claimed, delivery in zip(claims, deliveries, strict=False):
            acknowledged = delivery.outcome is DeliveryOutcome.ACKNOWLEDGED
            hooks = self._after_send if acknowledged else self._on_send_error
            if hooks:
                self._call(hooks, send_context_of(claimed, waited, delivery, took))

    def consuming(self, attempts: Iterable[Attempt]) -> None:
        """Tell that their handler is about to get these events."""
        if self._before_consume:
            for attempt in attempts:
                self._call(self._before_consume, consume_context_of(attempt))

    def consumed(self, attempt: Attempt, outcome: AttemptOutcome, *, took: float | None) -> None:
        """Tell that an attempt has gone well and is committed."""
        if self._after_consume:
            self._call(self._after_consume, consume_context_of(attempt, outcome, took=took))

    def failed(
        self,
        attempt: Attempt,
        outcome: AttemptOutcome,
        *,
        error: str,
        exception: BaseException | None,
        took: float | None,
    ) -> None:
        """Tell that an attempt has failed, which is written down."""
        if self._on_consume_error:
            context = consume_context_of(
                attempt, outcome, error=error, exception=exception, took=took
            )
            self._call(self._on_consume_error, context)

    def _call(self, hooks: Sequence[Callable[[Context], None]], context: Context) -> None:
        for hook in hooks:
            try:
                run(hook, context)
            except Exception as error:
                if self._lines.admits((id(hook), type(error))):
                    log.exception(
                        "hook failed, processing is unaffected",
                        exc_info=loggable(error),
                        extra={
                            "action": "hook_failed",
                            "hook": name_of(hook),
                            "event_id": str(context.event_id),
                            **WITH_TRACEBACK,
                        },
                    )


def _plain(hook: H) -> H:
    """Return a hook that can be called as a plain function of one context."""
    check_callable(hook, what="hook", call="hook(context)")
    return hook
