"""A job of a worker process: a pass, and how often it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodicJob:
    """A pass that runs every so often.

    It returns True when it should run again at once, or after what time it should, unless woken.
    """

    name: str
    run: Callable[[], bool | timedelta]
    every: timedelta | None
    """None: only when it is woken."""
    linger: timedelta = timedelta(0)
    """How long after its last pass it can be woken without the scheduler, which takes a while."""
    until_next: Callable[[], timedelta | None] = lambda: None
    """Asked when there is nothing more to do: when to run before its next time; None: not."""
    vital: bool = False
    """A worker is of no use while this one fails."""
