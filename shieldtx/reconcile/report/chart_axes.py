"""Where values lie in a plot: the plain geometry of its axes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

# What people call durations, about a decade from one to the next.
_RUNGS_MS = (
    *((1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1e3, "1 s"), (1e4, "10 s")),
    *((6e4, "1 min"), (6e5, "10 min"), (3.6e6, "1 h"), (3.6e7, "10 h")),
    *((8.64e7, "1 d"), (8.64e8, "10 d"), (8.64e9, "100 d"), (8.64e10, "1000 d")),
)
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A value that an axis names, and where it lies."""

    position: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CountAxis:
    """Upwards from 0 to a round number above the largest count."""

    largest: int
    bottom: float
    top: float

    @property
    def end(self) -> float:
        """The round number at its end."""
        power = 10.0 ** math.floor(math.log10(max(self.largest, 1)))
        return next(step * power for step in _STEPS if step * power >= self.largest)

    def at(self, count: float) -> float:
        """Return how high a count lies."""
        return self.bottom - (self.bottom - self.top) * count / self.end

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """Nothing, half and all; where half is no whole number, nothing and all."""
        values = [0.0, self.end / 2, self.end]
        return tuple(
            Tick(position=self.at(value), label=short(value))
            for value in values
            if value.is_integer()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayAxis:
    """Upwards by powers, from a rung of the ladder of durations below all delays to one above.

    A delay below its foot, or below zero where clocks differ, lies on the foot.
    """

    shortest: float
    longest: float
    bottom: float
    top: float

    @property
    def rungs(self) -> tuple[tuple[float, str], ...]:
        """Milliseconds and names of the durations that it shows; two at least."""
        below = [n for n, (ms, _) in enumerate(_RUNGS_MS) if ms <= self.shortest]
        above = [n for n, (ms, _) in enumerate(_RUNGS_MS) if ms >= self.longest]
        first = min(max(below, default=0), len(_RUNGS_MS) - 2)
        last = max(min(above, default=len(_RUNGS_MS) - 1), first + 1)
        return _RUNGS_MS[first : last + 1]

    def at(self, delay_ms: float) -> float:
        """Return how high a delay lies."""
        (foot, _), *_, (end, _) = self.rungs
        inside = min(max(delay_ms, foot), end)
        share = math.log(inside / foot) / math.log(end / foot)
        return self.bottom - (self.bottom - self.top) * share

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The rungs; every second one where there are many."""
        rungs = self.rungs
        step = 1 if len(rungs) <= 5 else 2  # noqa: PLR2004  what there is room for
        return tuple(Tick(position=self.at(ms), label=label) for ms, label in rungs[::step])


@dataclass(frozen=True, kw_only=True, slots=True)
class DayAxis:
    """From the first to the last day, all days in between equally wide."""

    first: date
    last: date
    left: float
    right: float

    @property
    def step(self) -> float:
        """The width of a day."""
        return (self.right - self.left) / ((self.last - self.first).days + 1)

    def at(self, day: date) -> float:
        """Return where the middle of a day lies."""
        return self.left + self.step * ((day - self.first).days + 0.5)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The first and the last day, and the one in the middle of many."""
        span = (self.last - self.first).days
        offsets = sorted({0, span // 2, span} if span >= 4 else {0, span})  # noqa: PLR2004
        days = [date.fromordinal(self.first.toordinal() + offset) for offset in offsets]
        return tuple(Tick(position=self.at(day), label=f"{day:%d %b}") for day in days)


def apart(
    positions: Collection[float], *, gap: float, lowest: float, highest: float
) -> list[float]:
    """Move labels until each has its gap to the one below, and none leaves the plot.

    `positions` come from the lowest to the highest; smaller numbers are higher up. Labels give way
    upwards, and downwards only where there is no more room above.
    """
    moved: list[float] = []
    for position in positions:
        moved.append(min(position, moved[-1] - gap if moved else lowest))
    ceiling = highest
    for n in reversed(range(len(moved))):
        moved[n] = max(moved[n], ceiling)
        ceiling = moved[n] + gap
    return moved


def short(count: float) -> str:
    """Return a number in few letters: 12k for 12,000."""
    for size, letter in _LARGE:
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.3g}"
