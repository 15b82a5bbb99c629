"""Hooks: functions of the application that are called around each send and each attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from shieldtx.domain.callables import check_callable, name_of, run
from shieldtx.domain.log_throttle import FailureThrottle
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

    Each method registers a hook and returns it, so that it also works as a decorator. It raises
    ConfigurationError for an argument that is not a plain function. The rules for hooks:

    - A hook runs in the worker, in the thread that does the work. It delays later events and uses
      up their leases, so it must be quick and must not block.
    - A hook is called at least once for its occasion, and again after a crash, a lost lease, or a
      redelivery. A `before` may have no `after`: the process died, the time was up, or the event
      got another attempt, which has its own `before`.
    - An exception of a hook is logged, once a minute for each hook and kind of error. It affects
      neither the event nor the other hooks.
    - A hook takes part in no transaction. Business effects belong into handlers.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._before_send: list[SendHook] = []
        self._after_send: list[SendHook] = []
        self._on_send_error: list[SendHook] = []
        self._before_consume: list[ConsumeHook] = []
        self._after_consume: list[ConsumeHook] = []
        self._on_consume_error: list[ConsumeHook] = []
        self._failures = FailureThrottle(clock=clock)

    # --- registration by an application
    # ------------------------------------------------------------

    def before_send(self, hook: S) -> S:
        """Register a hook for each event that a relay is about to pass to the broker's client.

        The claim is committed. The hook runs in the relay's thread, or in the thread that publishes
        for it.
        """
        self._before_send.append(_plain(hook))
        return hook

    def after_send(self, hook: S) -> S:
        """Register a hook for each event that the broker acknowledged, in the order of the batch.

        The hook runs in the same thread, before PROCESSED is committed. After a crash in between,
        or a lost lease, the event is sent again, and the hook is called again.
        """
        self._after_send.append(_plain(hook))
        return hook

    def on_send_error(self, hook: S) -> S:
        """Register a hook for each event that was to be sent and was not acknowledged.

        Like `after_send`, the hook runs before the event's new state is committed: another attempt,
        release, or permanent failure.
        """
        self._on_send_error.append(_plain(hook))
        return hook

    def before_consume(self, hook: C) -> C:
        """Register a hook that runs before the handler gets an event, in the thread of the handler.

        The attempt is counted and committed. For events that share a transaction, the hook runs
        right before each handler; for a handler that takes a list, it runs for all events before
        the handler.
        """
        self._before_consume.append(_plain(hook))
        return hook

    def after_consume(self, hook: C) -> C:
        """Register a hook for each event whose effect or compensation is committed.

        Its outcome is APPLIED or COMPENSATED, or MOOT for a rollback with nothing to undo. The hook
        runs in the same thread, after the commit. For events that share a transaction, it runs for
        all of them in their order. If the process dies right after the commit, the call is lost:
        the effect happens only once.
        """
        self._after_consume.append(_plain(hook))
        return hook

    def on_consume_error(self, hook: C) -> C:
        """Register a hook for each attempt without an effect, in the same thread.

        At that time, the transaction is rolled back, and the event's next state is committed: the
        outcome is RETRIED, REFUSED, DEAD, BLOCKED (it waits uncounted) or LOST.
        """
        self._on_consume_error.append(_plain(hook))
        return hook

    @contextmanager
    def observing_failures(self, hook: ConsumeHook) -> Iterator[None]:
        """Call a hook as `on_consume_error` does, during the block; for `shieldtx.testing`."""
        self.on_consume_error(hook)
        try:
            yield
        finally:
            self._on_consume_error.remove(hook)

    # --- calls by the workers
    # ----------------------------------------------------------------------

    @property
    def has_send_hooks(self) -> bool:
        """Whether any hook is registered for sends; read once per batch."""
        return bool(self._before_send or self._after_send or self._on_send_error)

    @property
    def watch_consuming(self) -> bool:
        """Whether any hook is registered for attempts; read once per batch."""
        return bool(self._before_consume or self._after_consume or self._on_consume_error)

    def sending(self, claims: Sequence[ClaimedEvent], *, waited: float) -> None:
        """Call the hooks before a send, `waited` seconds after the claim of its events."""
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
        """Call the hooks after a send, with the outcome of each event."""
        for claimed, delivery in zip(claims, deliveries, strict=False):
            acknowledged = delivery.outcome is DeliveryOutcome.ACKNOWLEDGED
            hooks = self._after_send if acknowledged else self._on_send_error
            if hooks:
                self._call(hooks, send_context_of(claimed, waited, delivery, took))

    def consuming(self, attempts: Iterable[Attempt]) -> None:
        """Call the hooks before the attempts of one handler."""
        if self._before_consume:
            for attempt in attempts:
                self._call(self._before_consume, consume_context_of(attempt))

    def consumed(self, attempt: Attempt, outcome: AttemptOutcome, *, took: float | None) -> None:
        """Call the hooks after a successful attempt, which is committed."""
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
        """Call the hooks after a failed attempt, whose failure is committed."""
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
                failures = self._failures.failed(id(hook), type(error).__qualname__)
                if failures is not None:
                    log.exception(
                        "hook failed, processing is unaffected",
                        exc_info=loggable(error),
                        extra={
                            "action": "hook_failed",
                            "hook": name_of(hook),
                            "count": failures.count,
                            "event_id": str(context.event_id),
                            **WITH_TRACEBACK,
                        },
                    )


def _plain(hook: H) -> H:
    """Return a hook that can be called as a plain function of one context."""
    check_callable(hook, what="hook", call="hook(context)")
    return hook
