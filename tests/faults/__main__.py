"""`python -m tests.faults`: breaks everything, counts, and says what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from tests.faults.matrix import Fault, Row, run
from tests.faults.report import line_of, table_of
from tests.faults.scenarios import relay
from tests.faults.world import World

FAULTS: tuple[Fault, ...] = (*relay.FAULTS,)


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="faults, by commas: F9,F10")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("build/faults.json"))
    asked = parser.parse_args()
    only = {name for name in asked.only.split(",") if name}
    chosen = [fault for fault in FAULTS if not only or fault.id in only]
    # A row of counts is worth its line, also in a log without a width.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    rows: list[Row] = []
    with World() as world:
        for fault in chosen:
            rows.append(run(fault, world, seed=asked.seed))
            console.print(line_of(rows[-1]))
    console.print(table_of(rows))
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps({"faults": [row.as_json() for row in rows]}, indent=2))
    passed = sum(row.passed for row in rows)
    print(f"{passed} passed, {len(rows) - passed} failed")
    return 0 if passed == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
