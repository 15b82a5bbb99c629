"""The parts of `python -m tests.verification.faults` that concern histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tests.verification.oracle import campaign, repair_campaign
from tests.verification.oracle.campaign import MOST_HISTORIES, seeds
from tests.verification.oracle.generate import Story
from tests.verification.oracle.mutants import BY_RULES, Mutant
from tests.verification.oracle.repair_mutants import OF_REPAIRS
from tests.verification.oracle.spark_mutants import ON_SPARK
from tests.verification.oracle.spark_world import spark_world
from tests.verification.oracle.topic_mutants import OF_TOPICS, TOPICS_ON_SPARK

NAMES: Final = (
    *("histories", "histories-mutants", "nights", "nights-mutants"),
    *("repairs", "repairs-mutants"),
)
HISTORIES: Final = 10_000
"""Histories judged by the rules in Python."""
NIGHTS_OF: Final = 200
"""Histories whose nights are run on PostgreSQL and Spark."""
REPAIRS: Final = 200
"""Histories of which a night is repaired."""

_LINES: Final = 20
"""Number of lines that show the progress in a log, which has no progress bar."""


class Tally(Protocol):
    """The outcomes of many histories."""

    wrong: dict[int, list[str]]

    @property
    def is_right(self) -> bool:
        """Return whether nothing was wrong."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the counts for the report."""
        ...


Progressing = Callable[[Tally], None]


class Search(Protocol):
    """Searches for a history in which something is wrong."""

    def __call__(self, seeds: range, *, stories: Sequence[Story]) -> int | None:
        """Return after how many histories one is found."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryParts:
    """Runs the parts, prints their progress, and notes the counts in a report."""

    console: Console
    seed: int
    tell: Callable[[Text, bool], None]
    """Prints a line, and counts whether its part passed."""
    report: dict[str, Any]

    def run(self, name: str) -> None:
        """Run the part with this name."""
        getattr(self, name.replace("-", "_"))()

    def histories(self) -> None:
        """Judge the nights of histories by the rules in Python."""
        with self._progress(HISTORIES) as progress:
            tally = campaign.run(campaign.by_rules, seeds(self.seed, HISTORIES), progress=progress)
        self._told("histories", tally)

    def histories_mutants(self) -> None:
        """Put defects of the rules back: histories show each."""

        def search(seeds: range, *, stories: Sequence[Story]) -> int | None:
            return campaign.search(campaign.by_rules, seeds, stories=stories)

        self._defects("histories-mutants", search, (*BY_RULES, *OF_TOPICS))

    def nights(self) -> None:
        """Judge the nights of histories by the reconciliation itself, on PostgreSQL and Spark."""
        with spark_world() as spark, self._progress(NIGHTS_OF) as progress:
            tally = campaign.run(spark.judge, seeds(self.seed, NIGHTS_OF), progress=progress)
        self._told("nights", tally)

    def nights_mutants(self) -> None:
        """Put defects of Spark's job and of stored runs back: histories show each."""
        with spark_world() as spark:

            def search(seeds: range, *, stories: Sequence[Story]) -> int | None:
                return campaign.search(spark.judge, seeds, stories=stories)

            self._defects("nights-mutants", search, (*ON_SPARK, *TOPICS_ON_SPARK))

    def repairs(self) -> None:
        """Repair nights, ended at every step and restarted, and let workers run."""
        with repair_campaign.services() as services, self._progress(REPAIRS) as progress:
            tally = repair_campaign.run(services, seeds(self.seed, REPAIRS), progress=progress)
        self._told("repairs", tally)

    def repairs_mutants(self) -> None:
        """Put defects of the repair back: repaired nights show each."""
        with repair_campaign.services() as services:

            def search(seeds: range, *, stories: Sequence[Story]) -> int | None:
                return repair_campaign.search(services, seeds, stories=stories)

            self._defects("repairs-mutants", search, OF_REPAIRS)

    def _told(self, name: str, tally: Tally) -> None:
        self.tell(Text(str(tally)), tally.is_right)
        for seed, wrong in list(tally.wrong.items())[:3]:
            self.console.print(f"seed {seed}: {wrong[0]}", style="red")
        self.report[name] = tally.as_json()

    def _defects(self, name: str, search: Search, mutants: Sequence[Mutant]) -> None:
        found = {}
        for mutant in mutants:
            with mutant.applied():
                number = search(seeds(self.seed, MOST_HISTORIES), stories=mutant.stories)
            said = f"after {number:,} histories" if number else "NOT CAUGHT"
            self.tell(Text(f"{mutant.name}: {said}"), bool(number))
            found[mutant.name] = {"caught": bool(number), "histories": number}
        self.report[name] = found

    @contextmanager
    def _progress(self, number: int) -> Iterator[Progressing]:
        bar = (TextColumn("histories"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*bar, console=self.console, transient=True) as progress:
            task = progress.add_task("histories", total=number)

            def advance(tally: Tally) -> None:
                progress.advance(task)
                done = progress.tasks[task].completed
                if not self.console.is_terminal and done % (number / _LINES) < 1:
                    self.console.print(str(tally), style="dim")

            yield advance
