"""`python -m tests.verification.mutation`: tries mutants with the tests that reach them."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from rich.console import Console

from tests.verification.mutation import report
from tests.verification.mutation.mutants import Mutant, mutants_of, path_of
from tests.verification.mutation.reach_cache import ReachCache
from tests.verification.mutation.run import MutationRun, collect_and_run
from tests.verification.mutation.targets import TESTS, modules


def main() -> int:
    """Try what the command line names, write the score, and fail for what nobody has explained."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.mutation", description=__doc__
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="beginnings of modules: store.fence relay"
    )
    parser.add_argument("--match", default="", help="mutants whose ids contain this text")
    parser.add_argument("--sample", type=int, help="so many of the mutants, the same each time")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files and folders of tests")
    parser.add_argument("--schedules", type=int, default=1_000, help="of the simulation")
    parser.add_argument("--processes", type=int, default=4, help="at a time: tests wait")
    parser.add_argument("--report", type=Path, default=Path("build/mutation.json"))
    asked = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(file=sys.stderr, width=160)
    mutants = _chosen(asked)
    measured = sorted(map(path_of, modules()))
    run = MutationRun(
        mutants,
        measured,
        console,
        processes=asked.processes,
        schedules=asked.schedules,
        cache=ReachCache(Path("build/mutation-reach.json"), measured),
    )
    status = collect_and_run(run, asked.tests)
    if status or len(run.tried) < len(mutants):
        console.print(f"{len(run.tried)} of {len(mutants)} mutants were tried", style="red")
        return status or 1
    report.write(run.tried, asked.report)
    console.print(report.table_of(run.tried))
    survivors = report.unexplained(run.tried)
    for each in survivors:
        console.print(f"survives: {each.mutant.id} ({each.tests} tests)", markup=False)
    killed = sum(each.is_killed for each in run.tried)
    print(f"{killed} of {len(mutants)} killed, {len(survivors)} survivors without a reason")
    return 1 if survivors else 0


def _chosen(asked: argparse.Namespace) -> list[Mutant]:
    found = [each for each in mutants_of(modules(asked.only)) if asked.match in each.id]
    if asked.sample is None or asked.sample >= len(found):
        return found
    return random.Random(0).sample(found, asked.sample)


if __name__ == "__main__":
    sys.exit(main())
