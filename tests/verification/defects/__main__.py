"""`python -m tests.verification.defects`: puts each defect back, and prints what finds it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from rich.console import Console
from rich.table import Table

from tests.verification.defects.harnesses import (
    Harness,
    find_by_faults,
    find_by_properties,
    find_in_model,
    find_in_simulation,
)
from tests.verification.defects.table import DEFECTS, as_markdown, names_of
from tests.verification.faults.world import World

Found = dict[tuple[Harness, str], bool]


def main() -> int:
    """Run what the command line names; return 1 where a harness misses a defect."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.verification.defects", description=__doc__
    )
    parser.add_argument("--markdown", action="store_true", help="print the table, run nothing")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--parallel", type=int, default=2, help="pairs of banks at a time")
    asked = parser.parse_args()
    if asked.markdown:
        print(as_markdown())
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=160)
    found: Found = {}
    for harness, name, is_found in _all(asked.seed, asked.parallel):
        found[harness, name] = is_found
        console.print(f"{'found' if is_found else 'MISSED':>6}  {harness}: {name}", markup=False)
    console.print(_table_of(found))
    missed = [name for (_, name), is_found in found.items() if not is_found]
    print(f"{len(found) - len(missed)} of {len(found)} found, {len(DEFECTS)} defects put back")
    return 1 if missed else 0


def _all(seed: int, parallel: int) -> Iterator[tuple[Harness, str, bool]]:
    for name in names_of(Harness.MODEL):
        yield Harness.MODEL, name, find_in_model(name)
    for name in names_of(Harness.SIMULATION):
        yield Harness.SIMULATION, name, find_in_simulation(name)
    own = [defect.own_test for defect in DEFECTS if defect.own_test]
    for name, is_found in find_by_properties([*names_of(Harness.PROPERTY), *own]).items():
        yield Harness.PROPERTY, name, is_found
    names = list(names_of(Harness.FAULTS))
    with World() as world, ThreadPoolExecutor(parallel) as pool:
        search = partial(find_by_faults, world=world, seed=seed)
        for name, is_found in zip(names, pool.map(search, names), strict=True):
            yield Harness.FAULTS, name, is_found


def _table_of(found: Found) -> Table:
    table = Table("defect", "what it did", "found by")
    for defect in DEFECTS:
        by = [str(each) for each in defect.caught if found.get((each.harness, each.name))]
        table.add_row(defect.id, defect.what, "\n".join(by) or "its own test alone")
    return table


if __name__ == "__main__":
    sys.exit(main())
