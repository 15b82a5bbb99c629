"""The faults of a schedule and their times, drawn from a seed."""

from __future__ import annotations

import random
from enum import Enum, auto
from typing import Protocol

from tests.verification.simulation.broker import Trouble

TROUBLES = ("outage", "ambiguous", "refused", "rejected", "twice", "killed")


class Fault(Enum):
    """A fault of a process at a call of one of its ports, before the call or after it."""

    NONE = auto()
    ERROR = auto()
    """The call fails: before it nothing was done, after it the answer is lost."""
    LATE = auto()
    """The call fails; if it is a single statement, the server executes it later."""
    KILL = auto()
    """The process is gone, and another one starts in its place."""
    STOP = auto()
    """The process is suspended, and resumes after other processes have run."""


class FaultSchedule(Protocol):
    """Decides everything random."""

    def fault(self) -> Fault:
        """Return the fault at this position."""
        ...

    def trouble(self, records: int) -> Trouble | None:
        """Return the trouble of a call that publishes this many records."""
        ...

    def error_inside(self) -> bool:
        """Return whether a process fails by itself: it gets no thread, no memory."""
        ...

    def error_at_a_call(self) -> bool:
        """Return whether a call of a port ends with an unexpected error."""
        ...

    def chance(self, probability: float) -> bool:
        """Return whether an event of this probability happens."""
        ...

    def between(self, least: int, most: int) -> int:
        """Return a number between the bounds, both included."""
        ...


class SeededFaultSchedule:
    """Draws everything from one seed.

    A schedule has some kinds of faults and not others, each at its own rate: a mixture of all of
    them would hide defects that need several of one kind in sequence.
    """

    def __init__(self, seed: int, *, sleepy: bool = False) -> None:
        r = self._random = random.Random(seed)
        bounds: list[tuple[float, Fault]] = []
        level = 0.0
        for fault, rates in (
            (Fault.ERROR, (0.0, 0.0, 0.02, 0.05)),
            (Fault.LATE, (0.0, 0.0, 0.0, 0.1)),
            (Fault.KILL, (0.0, 0.0, 0.01, 0.04)),
            (Fault.STOP, (0.05, 0.1, 0.2) if sleepy else (0.0, 0.02, 0.05, 0.1)),
        ):
            level += r.choice(rates)
            bounds.append((level, fault))
        self._bounds = bounds
        self._level = level
        self._troubles = [kind for kind in TROUBLES if r.random() < 0.4]
        self._trouble_rate = r.choice((0.1, 0.3, 0.6)) if self._troubles else 0.0
        # Drawn separately, so that the other schedules do not depend on them.
        self._inside = random.Random(f"inside {seed}")
        self._inside_rate = self._inside.choice((0.0, 0.0, 0.0, 0.0, 0.3))
        self._at_calls = random.Random(f"at calls {seed}")
        self._at_calls_rate = self._at_calls.choice((0.0, 0.0, 0.0, 0.0, 0.02, 0.06))

    def fault(self) -> Fault:
        drawn = self._random.random()
        if drawn >= self._level:
            return Fault.NONE
        return next(fault for bound, fault in self._bounds if drawn < bound)

    def trouble(self, records: int) -> Trouble | None:
        r = self._random
        if r.random() >= self._trouble_rate:
            return None
        return Trouble(
            kind=r.choice(self._troubles),
            at=int(r.random() * records),
            stored=int(r.random() * 3),
            sent=int(r.random() * 4),
            later=r.random() < 0.5,
        )

    def error_inside(self) -> bool:
        return self._inside_rate > 0 and self._inside.random() < self._inside_rate

    def error_at_a_call(self) -> bool:
        return self._at_calls_rate > 0 and self._at_calls.random() < self._at_calls_rate

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def between(self, least: int, most: int) -> int:
        return least + int(self._random.random() * (most - least + 1))
