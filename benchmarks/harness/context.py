"""The context of all experiments: servers, sizes, and the measurement of one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchmarks.data.fill_outbox import Feeder
from benchmarks.harness.child_process import Subject, follow
from benchmarks.harness.samples import BenchmarkFailed, Measured, Run, Sample, measured, ratios
from benchmarks.harness.servers import RunEnvironment, Servers
from benchmarks.harness.sizes import Sizes

WARM: Final = 2_000
"""Events of each run before the clock starts: connections are made, statements prepared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentResult:
    """The result of an experiment."""

    figures: Mapping[str, Measured] = field(default_factory=dict)
    """The figures with a target, by name."""
    absolutes: Mapping[str, Measured] = field(default_factory=dict)
    """Further figures without a target: most are events per second."""
    distributions: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Single values, for the plots."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Notes by name of the figure, for example about experiments that were left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The servers, sizes and output of the experiments."""

    servers: Servers
    sizes: Sizes
    say: Callable[[str], None]
    """Prints the progress."""
    subjects: frozenset[str] = frozenset()
    """The subjects to run, where an experiment has several; all if empty."""

    def by_turns(
        self, title: str, subjects: Mapping[str, Callable[[], Run]]
    ) -> dict[str, list[Run]]:
        """Run each subject once per round, in an order that changes from round to round."""
        wanted = [name for name in subjects if not self.subjects or name in self.subjects]
        runs: dict[str, list[Run]] = {name: [] for name in wanted}
        rounds = self.sizes.rounds
        for number in range(rounds):
            turn = number % max(1, len(wanted))
            for name in wanted[turn:] + wanted[:turn]:
                self.say(f"{title}, round {number + 1} of {rounds}: {name.replace('_', ' ')}")
                runs[name].append(subjects[name]())
        return runs


def rates(runs: Mapping[str, Sequence[Run]]) -> dict[str, Measured]:
    """Return the events per second of each subject as an absolute figure."""
    return {
        f"{name}_events_per_s": measured((run.rate for run in of), of) for name, of in runs.items()
    }


def compared(
    runs: Mapping[str, Sequence[Run]], figures: Mapping[str, tuple[str, str]]
) -> dict[str, Measured]:
    """Return the ratios of the rates of two subjects as figures."""
    return {
        figure: ratios(runs[ours], runs[theirs])
        for figure, (ours, theirs) in figures.items()
        if ours in runs and theirs in runs
    }


def run_subjects(
    place: RunEnvironment, name: str, jobs: Sequence[Mapping[str, Any]], **measuring: Any
) -> Run:
    """Measure one or several processes of a subject, as `measure` does."""
    with ExitStack() as running:
        subjects = [running.enter_context(Subject(name, place.job | dict(job))) for job in jobs]
        return measure(place, subjects, **measuring)


def measure(
    place: RunEnvironment,
    subjects: Sequence[Subject],
    *,
    events: int,
    warm: int = WARM,
    feeder: Feeder | None = None,
    is_over: Callable[[Sample], bool] = lambda _: False,
) -> Run:
    """Start subjects and measure them over the given events after the warm-up.

    `is_over` gets every sample, and may end the run early.
    """
    begin: Sample | None = None

    def is_enough(sample: Sample) -> bool:
        nonlocal begin
        if begin is None and sample.count >= warm:
            begin = replace(sample, **place.costs())
        if feeder is not None:
            feeder.done(sample.count)
        return is_over(sample) or sample.count >= warm + events

    for subject in subjects:
        subject.await_ready()
    end = replace(follow(subjects, is_enough), **place.costs())
    if begin is None or end.count == begin.count:
        raise BenchmarkFailed("it was over before anything could be measured")
    return Run.between(begin, end)
