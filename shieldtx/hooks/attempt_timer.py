"""The watch of one consumer: calls the hooks around its attempts, and takes their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from shieldtx.domain.error_groups import reason_with_leaves
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.inbox import Attempt, AttemptOutcome


class AttemptTimer:
    """Calls the consume hooks; does nothing where there are none. Used by one thread."""

    def __init__(self, hooks: Hooks, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._hooks = hooks
        self._clock = clock
        self._since: dict[tuple[UUID, str], float] = {}
        """When the attempts at work began, by the event's id and source."""

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know."""
        return self._hooks.watch_consuming

    def begin(self, attempts: Sequence[Attempt]) -> None:
        """Note that a handler is about to get these events."""
        if not self.is_on:
            return
        self._hooks.consuming(attempts)
        now = self._clock()
        self._since.update((_identity(attempt), now) for attempt in attempts)

    def end(self, attempts: Sequence[Attempt], outcome: AttemptOutcome) -> None:
        """Note that these have gone well, behind their commit."""
        if not self.is_on:
            return
        now = self._clock()
        for attempt in attempts:
            self._hooks.consumed(attempt, outcome, took=self._took(attempt, now))

    def fail(self, attempt: Attempt, outcome: AttemptOutcome, error: Exception | str) -> None:
        """Note that one has failed with `error`, and that this is written down."""
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
        """Leave those behind that never ended: they got a turn of their own, or were lost."""
        self._since.clear()

    def _took(self, attempt: Attempt, now: float) -> float | None:
        since = self._since.pop(_identity(attempt), None)
        return None if since is None else now - since


def _identity(attempt: Attempt) -> tuple[UUID, str]:
    return attempt.envelope.id, attempt.envelope.source
