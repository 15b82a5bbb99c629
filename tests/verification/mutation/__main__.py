"""`python -m tests.verification.mutation`: tries mutants with the tests that reach them."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from tests.verification.mutation import kept_sample, report, statement_users
from tests.verification.mutation.mutants import Mutant, mutants_of, path_of
from tests.verification.mutation.reach_cache import ReachCache
from tests.verification.mutation.run import MutationRun, collect_and_run
from tests.verification.mutation.targets import EVERY, TESTS, modules


def main() -> int:
    """Try what the command line names, write the score, and fail for unexplained survivors."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.mutation", description=__doc__
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="beginnings of modules: store.fence relay"
    )
    parser.add_argument("--match", default="", help="mutants whose ids contain this text")
    parser.add_argument(
        "--every", type=int, default=EVERY, help="one in this many of a module's mutants; 1 for all"
    )
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files and folders of tests")
    parser.add_argument("--schedules", type=int, default=1_000, help="of the simulation")
    parser.add_argument("--processes", type=int, default=4, help="at a time: tests wait")
    parser.add_argument(
        "--longest", type=float, default=60.0, help="seconds of tests for a mutant, cheapest first"
    )
    parser.add_argument(
        "--survivors",
        nargs="?",
        choices=("unexplained", "all"),
        const="unexplained",
        help="of the runs before, tried again: those without a reason, or all",
    )
    parser.add_argument("--untried", action="store_true", help="those that no run before has tried")
    parser.add_argument("--kept", action="store_true", help="the sample of CI, by known killers")
    parser.add_argument("--keep", type=int, help="keep this many killed ones as the sample of CI")
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print the score of the runs, and the reasons of survivors",
    )
    parser.add_argument("--report", type=Path, default=Path("build/mutation.json"))
    asked = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(file=sys.stderr, width=160)
    if asked.keep is not None or asked.markdown:
        existing = {mutant.id for mutant in mutants_of(modules())}
        found = [each for each in report.read(asked.report) if each["id"] in existing]
        if asked.keep is not None:
            kept_sample.keep(found, asked.keep)
        else:
            print("\n".join((*report.markdown(found), "", *report.markdown_of_reasons())))
        return 0
    mutants = _chosen(asked)
    stores = [str(path) for path in statement_users.STORE.glob("*.py")]
    measured = sorted({*map(path_of, modules()), *stores})
    killers = kept_sample.killers() if asked.kept else None
    existing = {mutant.id for mutant in mutants_of(modules())}
    run = MutationRun(
        mutants,
        measured,
        console,
        processes=asked.processes,
        schedules=asked.schedules,
        longest_s=asked.longest,
        killers=killers,
        cache=ReachCache(Path("build/mutation-reach.json"), measured),
        keep=partial(report.write, to=asked.report, existing=existing),
    )
    status = collect_and_run(run, sorted(set(killers.values())) if killers else asked.tests)
    records = report.write(run.tried, asked.report, existing)
    if status or len(run.tried) < len(mutants):
        console.print(f"{len(run.tried)} of {len(mutants)} mutants were tried", style="red")
        return status or 1
    console.print(report.table_of(records))
    of_this_run = {each.mutant.id for each in run.tried}
    left = report.unexplained(records) & of_this_run
    killed = sum(each.is_killed for each in run.tried)
    print(f"{killed} of {len(mutants)} killed, {len(left)} survivors without a reason")
    return 1 if left else 0


def _chosen(asked: argparse.Namespace) -> list[Mutant]:
    found = mutants_of(modules(asked.only))
    if asked.kept:
        return kept_sample.of(found)
    if asked.survivors:
        records = report.read(asked.report)
        is_all = asked.survivors == "all"
        survived = report.survivors(records) if is_all else report.unexplained(records)
        return [each for each in found if each.id in survived and asked.match in each.id]
    if asked.match:
        return [each for each in found if asked.match in each.id]
    of_module: dict[str, list[Mutant]] = {}
    for each in found:
        of_module.setdefault(each.module, []).append(each)
    chosen = [each for mutants in of_module.values() for each in mutants[:: asked.every]]
    tried = {each["id"] for each in report.read(asked.report)} if asked.untried else set()
    return [each for each in chosen if each.id not in tried]


if __name__ == "__main__":
    sys.exit(main())
