"""`python -m tests.verification.faults`: run faults and mutants, report the counts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tests.verification.faults import matrix, mutant_runs, sweep
from tests.verification.faults.markdown import figures_of
from tests.verification.faults.matrix import Fault, Row
from tests.verification.faults.mutant_runs import MutantRunResult
from tests.verification.faults.mutants import MUTANTS
from tests.verification.faults.report import line_of, line_of_mutant, table_of
from tests.verification.faults.scenarios import FAULTS
from tests.verification.faults.world import World
from tests.verification.model.explore import ModelResult, explore, walk
from tests.verification.model.worlds import MUTANTS as MUTANTS_OF_THE_MODEL
from tests.verification.model.worlds import WORLDS
from tests.verification.oracle.parts import NAMES as OF_HISTORIES
from tests.verification.oracle.parts import HistoryParts
from tests.verification.simulation.campaign import run as simulate
from tests.verification.simulation.campaign import search
from tests.verification.simulation.mutants import MUTANTS as MUTANTS_SIMULATED

IN_MEMORY = ("model", "model-mutants", "simulation", "simulation-mutants")
ON_SERVERS = ("matrix", "sweep", "mutants")
PARTS = (*IN_MEMORY, *OF_HISTORIES, *ON_SERVERS)
SCHEDULES = 100_000
SCHEDULES_IN_CI = 5_000
OF_THE_RECONCILIATION = "F34"
"""The fault of the matrix that histories belong to: selecting the fault runs them too."""

IN_CI = (
    *("F1", "F2", "F5", "F7", "F9", "F10", "F14", "F23", "F25", "F29"),
    *("F33a", "F33b", "F33c"),
)
"""The faults of the matrix that CI runs: one or two for each step, none with a long outage."""


class Run:
    """One call of the command: its arguments and its results."""

    def __init__(self, asked: argparse.Namespace, console: Console) -> None:
        self._asked = asked
        self._console = console
        self._only = {name for name in asked.only.split(",") if name}
        self.passed: list[bool] = []
        self.failed: list[Text] = []
        """The lines of the failed parts, printed again at the end."""
        self.report: dict[str, Any] = {}

    def model(self) -> None:
        """Explore every interleaving of the protocol, within bounds."""
        results = [explore(bounds) for bounds in WORLDS]
        states = sum(result.states for result in results)
        violations = [violation for result in results for violation in result.violations]
        self._print(Text(f"{states:,} states, {len(violations)} violations"), passed=not violations)
        for violation in violations[:1]:
            self._console.print(violation, style="red")
        self.report["model"] = {"states": states, "violations": len(violations)}

    def model_mutants(self) -> None:
        """Break each rule of the protocol: its invariant fails, on a shortest path of steps."""
        found = {}
        for bounds, invariant in MUTANTS_OF_THE_MODEL.items():
            result = explore(bounds)
            name = bounds.mutant.name if bounds.mutant else "none"
            problem = _problem_of(result, invariant)
            line = f"{name}: {invariant} after {result.states:,} states"
            self._print(Text(f"{line}: {problem}" if problem else line), passed=problem is None)
            found[name] = {"caught": problem is None, "states": result.states}
        self.report["model-mutants"] = found

    def simulation(self) -> None:
        """Run schedules of faults that are drawn from seeds."""
        schedules = SCHEDULES_IN_CI if self._asked.subset else SCHEDULES
        result = simulate(schedules, self._asked.seed)
        self._print(
            Text(f"{result.schedules:,} schedules, {result.violations} violations"),
            passed=not result.violations,
        )
        if result.first_violation is not None:
            seed = result.first_violation.seed
            self._console.print(
                f"replay it: python -m tests.verification.simulation --replay {seed}"
            )
        self.report["simulation"] = {
            "schedules": result.schedules,
            "violations": result.violations,
        }

    def simulation_mutants(self) -> None:
        """Search for the schedules that show each defect."""
        found = {}
        for mutant in MUTANTS_SIMULATED.values():
            caught, schedules = search(mutant)
            line = f"{mutant.name}: {mutant.invariant} after {schedules:,} schedules"
            self._print(Text(line if caught else f"{line}: NOT CAUGHT"), passed=caught)
            found[mutant.name] = {"caught": caught, "schedules": schedules}
        self.report["simulation-mutants"] = found

    def histories(self, part: str) -> None:
        """Run a part that checks histories of the reconciliation."""
        if self._wants(OF_THE_RECONCILIATION):
            HistoryParts(
                console=self._console,
                seed=self._asked.seed,
                tell=lambda line, passed: self._print(line, passed=passed),
                report=self.report,
            ).run(part)

    def matrix(self, world: World) -> None:
        """Run the faults of the matrix."""
        wanted = IN_CI if self._asked.subset else [fault.id for fault in FAULTS]
        chosen = [fault for fault in FAULTS if fault.id in wanted and self._wants(fault.id)]
        self._faults(world, chosen, "faults")

    def sweep(self, world: World) -> None:
        """Run every failpoint with every action; of the subset, those that kill."""
        self._faults(
            world,
            [
                fault
                for fault in sweep.faults()
                if self._wants(fault.id) and not (self._asked.subset and ".exit" not in fault.id)
            ],
            "sweep",
        )

    def mutants(self, world: World) -> None:
        """Run each mutant until it is caught."""
        chosen = [mutant for mutant in MUTANTS if self._wants(mutant)]
        seed = self._asked.seed
        results: dict[str, MutantRunResult] = {}
        jobs = [partial(mutant_runs.run, mutant, world, seed=seed) for mutant in chosen]
        for result in self._together(jobs):
            self._print(line_of_mutant(result), passed=result.caught)
            results[result.mutant.id] = result
        self.report["mutants"] = [results[mutant].as_json() for mutant in chosen]

    def _faults(self, world: World, faults: Sequence[Fault], name: str) -> None:
        rows: dict[str, Row] = {}
        possible = []
        for fault in faults:
            why_not = fault.why_not()
            if why_not is None:
                possible.append(fault)
            else:
                self._console.print(f"{fault.id:>4}  left out: {why_not}", style="yellow")
        jobs = [partial(matrix.run, fault, world, seed=self._asked.seed) for fault in possible]
        for row in self._together(jobs):
            self._print(line_of(row), passed=row.passed)
            rows[row.fault.id] = row
        in_order = [rows[fault.id] for fault in possible]
        self._console.print(table_of(in_order))
        self.report[name] = [row.as_json() for row in in_order]

    def _print(self, line: Text, *, passed: bool) -> None:
        self._console.print(line)
        self.passed.append(passed)
        if not passed:
            self.failed.append(line)

    def _together(self, jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
        """Run jobs concurrently, since they mostly wait; yield each result as soon as it exists."""
        with ThreadPoolExecutor(self._asked.parallel) as pool:
            running: list[Future[Any]] = [pool.submit(job) for job in jobs]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _wants(self, name: str) -> bool:
        # F22 stands for F22a, F22b, ..., and `settle` for each of its failpoints.
        parts = rf"({'|'.join(map(re.escape, self._only))})([a-z]|\..*)?"
        return not self._only or re.fullmatch(parts, name) is not None


def _problem_of(result: ModelResult, invariant: str) -> str | None:
    """Return why a mutant of the model does not count as caught, None where it does."""
    violation = result.violation_of(invariant)
    if violation is None:
        return "NOT CAUGHT"
    if not result.is_shortest(violation):
        return f"A PATH OF {len(violation.path)} STEPS AT DEPTH {result.depth}"
    try:
        walk(result.bounds, violation)
    except LookupError as error:
        return f"A PATH THAT IS NOT POSSIBLE: {error}"
    return None


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.faults", description=__doc__
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument(
        "--only",
        default="",
        help="ids of faults, failpoints, mutants: F9,settle,M3; F34 has the histories, too",
    )
    parser.add_argument("--subset", action="store_true", help="what CI runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2, help="pairs of banks at a time")
    parser.add_argument("--report", type=Path, default=Path("build/faults.json"))
    parser.add_argument(
        "--markdown", action="store_true", help="print the figures of the last run, run nothing"
    )
    asked = parser.parse_args()
    if asked.markdown:
        print(figures_of(json.loads(asked.report.read_text())))
        return 0
    parts = asked.parts or ((*OF_HISTORIES, *ON_SERVERS) if asked.only else PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))} (there are {', '.join(PARTS)})")
    # Wide enough for a row of counts, also in a log without a width.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    run = Run(asked, console)
    with ExitStack() as open_:
        # The servers are started where one of the parts needs them.
        world = open_.enter_context(World()) if set(parts) & set(ON_SERVERS) else None
        for part in parts:
            console.rule(part)
            if part in OF_HISTORIES:
                run.histories(part)
                continue
            getattr(run, part.replace("-", "_"))(*([world] if part in ON_SERVERS else []))
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps(run.report, indent=2) + "\n")
    console.print(f"the counts of every fault: {asked.report}")
    for line in run.failed:
        console.print(line)
    passed = sum(run.passed)
    print(f"{passed} passed, {len(run.passed) - passed} failed")
    return 0 if passed == len(run.passed) else 1


if __name__ == "__main__":
    sys.exit(main())
