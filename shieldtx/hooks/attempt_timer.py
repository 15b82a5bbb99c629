"""The timer of one consumer: calls the hooks around its attempts, and measures their duration.

It also counts the outcomes for the metrics of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from shieldtx.domain.error_groups import reason_with_leaves
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.inbox import Attempt, AttemptOutcome
from shieldtx.ports.meters import AttemptMeter


class AttemptTimer:
    """Calls the consume hooks, if there are any, and the meter. Used by one thread."""

    def __init__(
        self,
        hooks: Hooks,
        *,
        meter: AttemptMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hooks = hooks
        self._meter = meter
        self._clock = clock
        self._since: dict[tuple[UUID, str], float] = {}
        """Start times of the attempts in progress, by the event's id and source."""

    @property
    def is_on(self) -> bool:
        """Whether any consume hook is registered."""
        return self._hooks.watch_consuming

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Record that a handler is about to receive these events."""
        if not self.is_on:
            return
        self._hooks.consuming(attempts)
        now = self._clock()
        self._since.update((_identity(attempt), now) for attempt in attempts)

    def end(self, attempts: Sequence[Attempt], outcome: AttemptOutcome) -> None:
        """Record that these attempts succeeded; to be called after their commit."""
        if self._meter is not None:
            self._meter.ended(attempts, outcome)
        if not self.is_on:
            return
        now = self._clock()
        for attempt in attempts:
            self._hooks.consumed(attempt, outcome, took=self._took(attempt, now))

    def fail(self, attempt: Attempt, outcome: AttemptOutcome, error: Exception | str) -> None:
        """Record that an attempt failed with `error`; to be called after that is committed."""
        if self._meter is not None:
            self._meter.ended([attempt], outcome)
        if not self.is_on:
            return
        exception = None if isinstance(error, str) else error
        reason = error if isinstance(error, str) else reason_with_leaves(error)
        self._hooks.failed(
            attempt,
            outcome,
            error=reason,
            exception=exception,
            took=self._took(attempt, self._clock()),
        )

    def forget(self) -> None:
        """Drop the attempts without an outcome: their events got other attempts, or were lost."""
        self._since.clear()

    def _took(self, attempt: Attempt, now: float) -> float | None:
        since = self._since.pop(_identity(attempt), None)
        return None if since is None else now - since


def _identity(attempt: Attempt) -> tuple[UUID, str]:
    return attempt.envelope.id, attempt.envelope.source
