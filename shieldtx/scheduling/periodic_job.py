"""A job of a worker process: a pass, and how often it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodicJob:
    """A pass that runs periodically.

    The pass returns True to run again at once, or the delay until its next run, unless woken
    earlier.
    """

    name: str
    run: Callable[[], bool | timedelta]
    every: timedelta | None
    """None: only when the job is woken."""
    linger: timedelta = timedelta(0)
    """How long after its last pass the job can be woken without the scheduler, which is slower."""
    until_next: Callable[[], timedelta | None] = lambda: None
    """Called when a pass finds nothing more to do: time to an earlier run, or None."""
    vital: bool = False
    """Whether the worker is useless while this job fails."""
    fresh_for: timedelta = timedelta(seconds=60)
    """How long after a success a vital job counts as working."""
    obstacle: Callable[[], str] = lambda: ""
    """Returns why its passes do nothing although they succeed, such as an unreachable broker."""
