"""`python -m tests.verification.simulation`: play schedules, or replay one of them step by step."""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.verification.simulation.campaign import SimulationResult, replay, run
from tests.verification.simulation.mutants import MUTANTS


def main() -> int:
    """Return 1 where an invariant was violated."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.simulation", description=__doc__
    )
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule, with its steps")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="with this deliberate defect")
    asked = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    if asked.replay is not None:
        return _replay(console, asked.replay, asked.mutant)
    started = time.monotonic()
    columns = (TextColumn("schedules"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("schedules", total=asked.schedules)
        result = run(
            asked.schedules,
            asked.seed,
            asked.processes,
            mutant=asked.mutant,
            progress=lambda done: progress.advance(task, done),
        )
    _report(console, result, asked.mutant)
    seconds = time.monotonic() - started
    console.print(f"{result.schedules} schedules, {result.violations} violations ({seconds:.0f} s)")
    return 1 if result.violations else 0


def _report(console: Console, result: SimulationResult, mutant: str | None) -> None:
    finding = result.first_violation
    if finding is None:
        return
    for violation in finding.violations:
        console.print(f"seed {finding.seed}: {violation.invariant}: {violation.statement}")
    with_defect = f" --mutant {mutant}" if mutant else ""
    console.print(
        f"replay it: python -m tests.verification.simulation --replay {finding.seed}{with_defect}"
    )


def _replay(console: Console, seed: int, mutant: str | None) -> int:
    trace: list[str] = []
    found = replay(seed, trace, mutant=mutant)
    for line in trace:
        console.print(line, markup=False)
    for violation in found:
        console.print(f"{violation.invariant}: {violation.statement}", markup=False)
    console.print(f"1 schedule, {1 if found else 0} violations")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
