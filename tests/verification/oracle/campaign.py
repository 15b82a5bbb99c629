"""Many histories from seeds, by the rules in Python or on Spark, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.verification.faults.reconciliation_outcomes import Accuracy
from tests.verification.oracle.generate import Story, a_history
from tests.verification.oracle.history import History
from tests.verification.oracle.nights import PythonNights, Said, mismatches

SEEDS_PER_RUN = 1_000_000
MOST_HISTORIES = 300
"""After this many histories, a defect counts as not shown by histories."""

Judge = Callable[[History], Sequence[Said]]
"""Runs the nights of a history."""


@dataclass(kw_only=True, slots=True)
class Tally(Accuracy):
    """The results of the nights of histories, in numbers."""

    histories: int = 0
    nights: int = 0
    further: int = 0
    """Nights whose run read only what had moved."""
    wrong: dict[int, list[str]] = field(default_factory=dict)
    """By seed: what was missed, falsely reported, or otherwise wrong."""

    def note(self, seed: int, said: Iterable[Said]) -> None:
        """Count a history."""
        self.histories += 1
        for night in said:
            self.nights += 1
            self.further += not night.is_full
            planted, reported = mismatches(night.truth), mismatches(night.found)
            self.planted += len(planted)
            self.reported += len(reported)
            self.right += len(planted & reported)
            if night.wrong:
                self.wrong.setdefault(seed, []).extend(night.wrong)

    @property
    def is_right(self) -> bool:
        """Return whether every night has reported exactly what it had to."""
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        """Return the counts for a report."""
        counts = ("histories", "nights", "further", "planted", "reported", "right")
        return {name: getattr(self, name) for name in counts} | {"wrong": len(self.wrong)}

    def __str__(self) -> str:
        return (
            f"{self.histories:,} histories, {self.nights:,} nights ({self.further:,} of them from "
            f"where an earlier one had ended): planted {self.planted:,}, reported "
            f"{self.reported:,}, precision {self.precision:.3f}, recall {self.recall:.3f}; "
            f"{len(self.wrong)} histories with something wrong"
        )


def seeds(seed: int, number: int) -> range:
    """Return the seeds of `number` histories of a run that has a seed of its own."""
    first = seed * SEEDS_PER_RUN
    return range(first, first + number)


def by_rules(history: History) -> Sequence[Said]:
    """Run the nights of a history by the rules in Python."""
    return PythonNights(history=history).run()


def run(
    judge: Judge,
    seeds: Iterable[int],
    *,
    stories: Sequence[Story] = (),
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Make a history of each seed and have its nights judged."""
    tally = Tally()
    for seed, said in _judged(judge, seeds, stories):
        tally.note(seed, said)
        progress(tally)
    return tally


def search(judge: Judge, seeds: Iterable[int], *, stories: Sequence[Story] = ()) -> int | None:
    """Return after how many histories something is wrong; None: nothing is."""
    for number, (_, said) in enumerate(_judged(judge, seeds, stories), start=1):
        if any(night.wrong for night in said):
            return number
    return None


def _judged(
    judge: Judge, seeds: Iterable[int], stories: Sequence[Story]
) -> Iterator[tuple[int, Sequence[Said]]]:
    for seed in seeds:
        yield seed, judge(a_history(Random(seed), stories=stories))
