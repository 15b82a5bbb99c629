"""Runs of failures that look like a defect: different events, one error, no success between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

from shieldtx.domain.error_groups import leaves_of
from shieldtx.domain.states import TxKind
from shieldtx.ports.pauses import ALL, BREAKER, HandlerKey, Pause

Defect: TypeAlias = tuple[str, str]
"""The class of an error, and the line of the application's code that raised it."""

_Event: TypeAlias = tuple[UUID, str]


def defect_of(error: BaseException, raise_site: str) -> Defect:
    """Return the class of an error, for a group of equal errors that of one, and its raise site."""
    kinds = {type(leaf) for leaf in leaves_of(error)}
    kind = kinds.pop() if len(kinds) == 1 else type(error)
    return f"{kind.__module__}.{kind.__qualname__}", raise_site


MOST_DOUBLINGS: Final = 4
"""After so many pauses in a row, the required run of a handler grows no more."""

CALM: Final = 600.0
"""Seconds after the end of a handler's last pause until the first length is required again."""


class FailureRuns:
    """The present run of failures of each handler. Safe for any number of threads.

    The required run doubles each time that a pause of the handler ends. The handler worked then, so
    the failures that follow are probably those of a burst of bad data: the handler must have time
    for the events between them, and for the last attempts of the bad ones.
    """

    def __init__(self, *, length: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Complete a run at failures of `length` different events at first; 0: never."""
        self._length = length
        self._clock = clock
        self._ended: dict[HandlerKey, tuple[int, float]] = {}
        """By handler: how many pauses have ended in a row, and when the last one did."""
        self._runs: dict[HandlerKey, tuple[Defect, set[_Event], float]] = {}
        """By handler: the defect, the events that failed by it, and when the first one did."""
        self._lock = threading.Lock()

    def failed(self, handler: HandlerKey, defect: Defect, event: _Event) -> bool:
        """Add a failure; return whether the run is complete. Another defect begins a new run."""
        if not self._length:
            return False
        with self._lock:
            known, events, began = self._runs.get(handler, (defect, set(), self._clock()))
            if known != defect:
                events, began = set(), self._clock()
            events.add(event)
            self._runs[handler] = defect, events, began
            return len(events) >= self._required(handler)

    def began(self, handler: HandlerKey) -> float:
        """Return when the first failure of the present run was; now, if there is no run."""
        run = self._runs.get(handler)
        return run[2] if run is not None else self._clock()

    def end(self, handler: HandlerKey) -> None:
        """End the run of a handler: it has succeeded, or is paused or resumed."""
        if self._runs:
            with self._lock:
                self._runs.pop(handler, None)

    def end_of(self, pause: Pause) -> None:
        """End the runs of the handlers that an ended pause covers, and no others.

        If a breaker had paused the handler, its next run must be longer.
        """
        with self._lock:
            if pause.by == BREAKER and pause.kind != ALL:
                handler = pause.event_type, TxKind(pause.kind)
                self._ended[handler] = self._doublings(handler) + 1, self._clock()
            self._runs = {key: run for key, run in self._runs.items() if not pause.covers(key)}

    def _required(self, handler: HandlerKey) -> int:
        return int(self._length * 2 ** min(self._doublings(handler), MOST_DOUBLINGS))

    def _doublings(self, handler: HandlerKey) -> int:
        count, ended_at = self._ended.get(handler, (0, 0.0))
        return count if self._clock() - ended_at < CALM else 0
