"""The run: measures what tests reach, then tries each mutant with its own tests, cheapest first."""

from __future__ import annotations

import importlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.support.shared_servers import OWNER
from tests.support.stages import SUITE, stage_of
from tests.verification.mutation import reach as measuring
from tests.verification.mutation import statement_users
from tests.verification.mutation.forked_tests import (
    Child,
    Failed,
    Starting,
    alone,
    fork,
    run_in_turn,
    wait_for_any,
)
from tests.verification.mutation.forked_tests import Progress as Sender
from tests.verification.mutation.mutants import Mutant, everything
from tests.verification.mutation.reach import Reach, Reached, Took
from tests.verification.mutation.reach_cache import ReachCache
from tests.verification.mutation.targets import LEFT_OUT
from tests.verification.simulation import campaign

SERVERS_LEFT_OUT = {"kafka", "spark", "cluster"}
"""Fixtures whose servers take longer than the tests of a mutant may."""
SIMULATION = "tests/verification/simulation/"
START_S = 60.0
LONGEST_SIMULATION_S = 300.0
AT_LEAST_S = 20.0
TIMES = 10.0
"""A test fails if it takes this many times longer with a mutant than without."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """The outcome of a mutant."""

    mutant: Mutant
    killed_by: str | None
    """The test that failed; None if none did."""
    timed_out: bool
    tests: int
    """Number of tests that ran."""
    reached_by: int
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Return whether a test has detected the mutant."""
        return self.killed_by is not None


Judge = Callable[[Child], Tried]


@dataclass
class MutationRun:
    """A plugin of pytest that runs the collected tests against mutants, not as they are."""

    mutants: Sequence[Mutant]
    measured: Sequence[str]
    """The paths of the modules whose reach is measured."""
    console: Console
    processes: int = 4
    cache: ReachCache | None = None
    """Keeps the reach of tests for the next run."""
    schedules: int = 1_000
    """Schedules of the simulation, for mutants in its code, if no test has failed."""
    longest_s: float = 60.0
    """The tests of one mutant, by their time without it: the cheapest up to this sum."""
    killers: Mapping[str, str] | None = None
    """By mutant the one test that is known to detect it: nothing else runs or is measured."""
    keep: Callable[[Sequence[Tried]], object] = len
    """Called with all outcomes after each mutant: a run that is stopped loses nothing."""
    tried: list[Tried] = field(default_factory=list)
    reach: Reach = field(default_factory=Reach)
    _killers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Tests that have killed mutants of a module, and are tried first on its others."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace pytest's run of the tests."""
        if owner := session.config.stash.get(OWNER, None):
            # Before any fork, so that all processes share it.
            owner.postgres()
        items = {item.nodeid: item for item in session.items if _is_usable(item)}
        if self.killers is None:
            self._measure(session, list(items.values()))
        with self._progress() as bar:
            task = bar.add_task("mutants", total=len(self.mutants))
            work = [partial(self._start, session, items, mutant) for mutant in self.mutants]
            for tried in self._each(work):
                self.tried.append(tried)
                self.keep(self.tried)
                bar.advance(task)
                if not tried.is_killed:
                    bar.console.print(f"survives: {tried.mutant.id}", markup=False, style="yellow")
        return True

    # --- what tests reach -------------------------------------------------------------------------

    def _measure(self, session: pytest.Session, items: Sequence[pytest.Item]) -> None:
        if self.cache is not None:
            self.reach = self.cache.load(_file_of(item) for item in items)
        unknown = [item for item in items if item.nodeid not in self.reach.seconds]
        parts = _shared_out(unknown, self.processes)
        with self._progress() as bar:
            task = bar.add_task("tests", total=len(items))
            children = [
                fork(
                    partial(measuring.measure, session, part, paths=self.measured), within_s=START_S
                )
                for part in parts
            ]
            while children:
                for ended in wait_for_any(children):
                    children.remove(ended)
                    self._take(ended)
                bar.update(task, completed=self._count_measured(children))
        if self.cache is not None:
            self.cache.store(self.reach)
        for nodeid in sorted(self.reach.failed):
            self.console.print(f"fails without a mutant: {nodeid}", markup=False, style="red")

    def _take(self, child: Child) -> None:
        child.raise_if_broken()
        for message in child.received:
            if isinstance(message, Took):
                self.reach.seconds[message.nodeid] = message.seconds
            elif isinstance(message, Failed):
                self.reach.failed.add(message.nodeid)
            elif isinstance(message, Reached):
                self.reach.add(message.lines)
        if child.timed_out:
            raise TimeoutError(f"a test took too long: {child.received[-1]}")

    def _count_measured(self, children: Sequence[Child]) -> int:
        running = [m for child in children for m in child.received if isinstance(m, Took)]
        return len(self.reach.seconds) + len(running)

    # --- mutants ----------------------------------------------------------------------------------

    def _start(
        self, session: pytest.Session, items: Mapping[str, pytest.Item], mutant: Mutant
    ) -> tuple[Child, Judge]:
        reached, chosen = self._tests_of(mutant)
        is_simulated = any(test.startswith(SIMULATION) for test in reached)
        began = time.monotonic()

        def work(sender: Sender) -> None:
            importlib.import_module(mutant.module)
            mutant.apply(everything())
            measuring.forget_statements()
            failed = run_in_turn(
                session,
                [items[test] for test in chosen],
                sender,
                lambda item: max(AT_LEAST_S, TIMES * self.reach.seconds.get(item.nodeid, 0.0)),
                alone,
                until_failure=True,
            )
            if is_simulated and not failed:
                _simulate(self.schedules, sender)

        def judge(child: Child) -> Tried:
            child.raise_if_broken()
            started = [m.nodeid for m in child.received if isinstance(m, Starting)]
            failed = [m.nodeid for m in child.received if isinstance(m, Failed)]
            killer = failed[0] if failed else started[-1] if child.timed_out else None
            if killer is not None:
                self._killers[mutant.module].add(killer)
            return Tried(
                mutant=mutant,
                killed_by=killer,
                timed_out=child.timed_out,
                tests=len(started),
                reached_by=len(reached),
                seconds=time.monotonic() - began,
            )

        return fork(work, within_s=START_S), judge

    def _tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests that reach a mutant, and the tests to run, in their order."""
        if self.killers is not None:
            # Searches are left to whole runs.
            return [], [self.killers[mutant.id]]
        reached = self._reaching(mutant)
        chosen = self._affordable(reached)
        chosen.sort(key=lambda test: test not in self._killers[mutant.module])
        return reached, chosen

    def _reaching(self, mutant: Mutant) -> list[str]:
        found = self.reach.tests_of(str(mutant.path), mutant.line, mutant.last_line)
        if not mutant.module.startswith(statement_users.PACKAGE):
            return found
        run = {
            test
            for path, line in statement_users.lines_that_run(mutant.function)
            for test in self.reach.tests_of(path, line, line)
        }
        return [test for test in found if test in run] or found

    def _affordable(self, tests: Sequence[str]) -> list[str]:
        chosen, total = [], 0.0
        for test in tests:
            total += self.reach.seconds[test]
            if chosen and total > self.longest_s:
                break
            chosen.append(test)
        return chosen

    def _each(self, start: Sequence[Callable[[], tuple[Child, Judge]]]) -> Iterator[Tried]:
        waiting = deque(start)
        running: dict[int, tuple[Child, Judge]] = {}
        while waiting or running:
            while waiting and len(running) < self.processes:
                child, judge = waiting.popleft()()
                running[child.pid] = child, judge
            for ended in wait_for_any([child for child, _ in running.values()]):
                _, judge = running.pop(ended.pid)
                yield judge(ended)

    def _progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        return Progress(*columns, TimeElapsedColumn(), console=self.console)


def _is_usable(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return stage_of(item) == SUITE and not fixtures & SERVERS_LEFT_OUT and _names_no_kafka(item)


def _names_no_kafka(item: pytest.Item) -> bool:
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return not any("kafka" in str(value) for value in parameters.values())


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _shared_out(items: Sequence[pytest.Item], parts: int) -> list[list[pytest.Item]]:
    """Divide the files: the tests of one file share their fixtures."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(_file_of(item), []).append(item)
    dealt: list[list[pytest.Item]] = [[] for _ in range(parts)]
    for file in by_file.values():
        min(dealt, key=len).extend(file)
    return [part for part in dealt if part]


def _simulate(schedules: int, sender: Sender) -> None:
    """Play schedules as `make faults` does, and send the first violation."""
    name = f"simulation of {schedules} schedules"
    sender.send(Starting(name, LONGEST_SIMULATION_S))
    if campaign.run(schedules, seed=1, processes=1).violations:
        sender.send(Failed(name))


def collect_and_run(run: MutationRun, tests: Sequence[str]) -> int:
    """Let pytest collect the tests and run them as `run` does; return pytest's status."""
    options = ["-q", "-s", "-p", "no:cacheprovider", *(f"--ignore={each}" for each in LEFT_OUT)]
    return int(pytest.main([*options, *tests], plugins=[run]))
