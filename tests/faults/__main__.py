"""`python -m tests.faults`: breaks everything, counts, and says what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.faults import hunts, matrix, sweep
from tests.faults.matrix import Fault
from tests.faults.mutants import MUTANTS
from tests.faults.report import line_of, line_of_trophy, table_of
from tests.faults.scenarios import consumer, poison, relay, write
from tests.faults.world import World

FAULTS: tuple[Fault, ...] = (*write.FAULTS, *relay.FAULTS, *consumer.FAULTS, *poison.FAULTS)
PARTS = ("matrix", "sweep", "mutants", "simulation", "model")


class Run:
    """One call of the command: what it was asked for, and what came of it."""

    def __init__(self, asked: argparse.Namespace, console: Console) -> None:
        self._asked = asked
        self._console = console
        self._only = {name for name in asked.only.split(",") if name}
        self.verdicts: list[bool] = []
        self.report: dict[str, Any] = {}

    def matrix(self, world: World) -> None:
        """Run the faults of the matrix."""
        self._faults(world, [fault for fault in FAULTS if self._wants(fault.id)], "faults")

    def sweep(self, world: World) -> None:
        """Run every failpoint with every action."""
        self._faults(world, [fault for fault in sweep.faults() if self._wants(fault.id)], "sweep")

    def mutants(self, world: World) -> None:
        """Let the mutants loose."""
        trophies: list[hunts.Trophy] = []
        jobs = [
            lambda mutant=mutant: hunts.run(mutant, world, seed=self._asked.seed)
            for mutant in MUTANTS
            if self._wants(mutant)
        ]
        for trophy in self._together(jobs):
            self._console.print(line_of_trophy(trophy))
            trophies.append(trophy)
        self.verdicts += [trophy.caught for trophy in trophies]
        self.report["mutants"] = [trophy.as_json() for trophy in trophies]

    def _faults(self, world: World, faults: Sequence[Fault], name: str) -> None:
        rows: list[matrix.Row] = []
        jobs = [
            lambda fault=fault: matrix.run(fault, world, seed=self._asked.seed) for fault in faults
        ]
        for row in self._together(jobs):
            self._console.print(line_of(row))
            rows.append(row)
        order = [fault.id for fault in faults]
        rows.sort(key=lambda row: order.index(row.fault.id))
        self._console.print(table_of(rows))
        self.verdicts += [row.passed for row in rows]
        self.report[name] = [row.as_json() for row in rows]

    def _together(self, jobs: Sequence[Callable[[], Any]]) -> Iterator[Any]:
        """Run jobs side by side, since most of their time is waiting; yield what ends first."""
        with ThreadPoolExecutor(self._asked.parallel) as pool:
            running: list[Future[Any]] = [pool.submit(job) for job in jobs]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _wants(self, name: str) -> bool:
        return not self._only or name in self._only


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    parser.add_argument("--only", default="", help="ids of faults or mutants: F9,F10,M3")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2, help="pairs of banks at a time")
    parser.add_argument("--report", type=Path, default=Path("build/faults.json"))
    asked = parser.parse_args()
    # A row of counts is worth its line, also in a log without a width.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    run = Run(asked, console)
    with World() as world:
        for part in asked.parts or PARTS:
            console.rule(part)
            getattr(run, part)(world)
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps(run.report, indent=2))
    console.print(f"counts of every fault: {asked.report}")
    print(f"{sum(run.verdicts)} passed, {len(run.verdicts) - sum(run.verdicts)} failed")
    return 0 if all(run.verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
