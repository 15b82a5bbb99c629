"""Handlers that one worker pauses for itself alone, because they fail here and work elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from shieldtx.ports.pauses import HandlerKey, Pause

THIS_WORKER: Final = "breaker, in this worker alone"
"""Who has paused a handler in one worker."""


@dataclass(kw_only=True, slots=True)
class _Own:
    pause: Pause
    began: float
    until: float
    count: int = 0


class OwnPauses:
    """The handlers that a worker has paused for itself: for a time, and longer after each failure.

    After that time the handler is on trial: its next failure pauses it again at once, and a
    success ends the trial. No other worker knows of them, and they end with the process. Safe for
    any number of threads: each change is one assignment.
    """

    def __init__(
        self,
        *,
        wait_after: Callable[[int], timedelta],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Pause a handler for the wait after so many pauses in a row."""
        self._wait_after = wait_after
        self._clock = clock
        self._own: dict[HandlerKey, _Own] = {}

    def pauses(self) -> Sequence[Pause]:
        """Return the pauses whose time is not over."""
        if not self._own:
            return ()
        now = self._clock()
        return [own.pause for own in tuple(self._own.values()) if now < own.until]

    def pause(self, handler: HandlerKey, *, reason: str) -> None:
        """Pause a handler, for longer than the last time."""
        before = self._own.get(handler)
        count = before.count + 1 if before is not None else 0
        now = self._clock()
        self._own[handler] = _Own(
            pause=Pause(
                event_type=handler[0],
                kind=handler[1].value,
                since=datetime.now(UTC),
                by=THIS_WORKER,
                reason=reason,
                has_probes=False,
            ),
            began=now,
            until=now + self._wait_after(count).total_seconds(),
            count=count,
        )

    def on_trial_since(self, handler: HandlerKey) -> float | None:
        """Return when the last pause of a handler on trial began; None: it is not on trial."""
        own = self._own.get(handler)
        return own.began if own is not None else None

    def end(self, handlers: Iterable[HandlerKey]) -> Sequence[Pause]:
        """Forget handlers that have succeeded, or that are paused for all; return their pauses."""
        if not self._own:
            return ()
        found = [self._own.pop(handler, None) for handler in handlers]
        return [own.pause for own in found if own is not None]
