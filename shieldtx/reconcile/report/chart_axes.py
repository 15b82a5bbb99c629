"""The geometry of a chart's axes: positions of values in a plot."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date

# Names of durations, each about ten times the one before.
_RUNGS_MS = (
    *((1.0, "1 ms"), (10.0, "10 ms"), (100.0, "100 ms"), (1e3, "1 s"), (1e4, "10 s")),
    *((6e4, "1 min"), (6e5, "10 min"), (3.6e6, "1 h"), (3.6e7, "10 h")),
    *((8.64e7, "1 d"), (8.64e8, "10 d"), (8.64e9, "100 d"), (8.64e10, "1000 d")),
)
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
_LARGE = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A value that an axis labels, with its position."""

    position: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CountAxis:
    """An axis upwards from 0 to a round number above the largest count."""

    largest: int
    bottom: float
    top: float

    @property
    def end(self) -> float:
        """The round number at the end of the axis."""
        power = 10.0 ** math.floor(math.log10(max(self.largest, 1)))
        return next(step * power for step in _STEPS if step * power >= self.largest)

    def at(self, count: float) -> float:
        """Return the vertical position of a count."""
        return self.bottom - (self.bottom - self.top) * count / self.end

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The ticks at zero, half and end; without the half if it is not a whole number."""
        values = [0.0, self.end / 2, self.end]
        return tuple(
            Tick(position=self.at(value), label=short(value))
            for value in values
            if value.is_integer()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayAxis:
    """A logarithmic axis upwards, from a named duration below all delays to one above.

    A delay below the foot, or below zero where clocks differ, lies on the foot.
    """

    shortest: float
    longest: float
    bottom: float
    top: float

    @property
    def rungs(self) -> tuple[tuple[float, str], ...]:
        """Milliseconds and names of the durations on the axis; at least two."""
        below = [n for n, (ms, _) in enumerate(_RUNGS_MS) if ms <= self.shortest]
        above = [n for n, (ms, _) in enumerate(_RUNGS_MS) if ms >= self.longest]
        first = min(max(below, default=0), len(_RUNGS_MS) - 2)
        last = max(min(above, default=len(_RUNGS_MS) - 1), first + 1)
        return _RUNGS_MS[first : last + 1]

    def at(self, delay_ms: float) -> float:
        """Return the vertical position of a delay."""
        (foot, _), *_, (end, _) = self.rungs
        inside = min(max(delay_ms, foot), end)
        share = math.log(inside / foot) / math.log(end / foot)
        return self.bottom - (self.bottom - self.top) * share

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The durations of the axis; every second one if there are many."""
        rungs = self.rungs
        step = 1 if len(rungs) <= 5 else 2  # noqa: PLR2004  the space of the plot
        return tuple(Tick(position=self.at(ms), label=label) for ms, label in rungs[::step])


@dataclass(frozen=True, kw_only=True, slots=True)
class DayAxis:
    """An axis from the first to the last day, with equal widths for all days."""

    first: date
    last: date
    left: float
    right: float

    @property
    def step(self) -> float:
        """The width of a day."""
        return (self.right - self.left) / ((self.last - self.first).days + 1)

    def at(self, day: date) -> float:
        """Return the horizontal position of the middle of a day."""
        return self.left + self.step * ((day - self.first).days + 0.5)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        """The first and the last day; with many days also the middle one."""
        span = (self.last - self.first).days
        offsets = sorted({0, span // 2, span} if span >= 4 else {0, span})  # noqa: PLR2004
        days = [date.fromordinal(self.first.toordinal() + offset) for offset in offsets]
        return tuple(Tick(position=self.at(day), label=f"{day:%d %b}") for day in days)


def apart(
    positions: Collection[float], *, gap: float, lowest: float, highest: float
) -> list[float]:
    """Move labels until each has its gap to the one below, and all stay inside the plot.

    `positions` ascend from the lowest label; smaller numbers are higher up. Labels move upwards,
    and downwards only where there is no more room above.
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
    """Return a number in few characters: 12k for 12,000."""
    for size, letter in _LARGE:
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.3g}"
