"""The sizes of the reconciliation's benchmark, from its command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileSizes:
    """The sizes of the measurements."""

    rows: int
    small_rows: int
    incremental_rows: int
    rounds: int

    def turns(self, rows: int) -> list[str]:
        """Return the names of the rounds over the given rows."""
        return [f"{rows:,} rows, round {one + 1} of {self.rounds}" for one in range(self.rounds)]


def asked_sizes() -> ReconcileSizes:
    """Return the sizes that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reconciliation")
    parser.add_argument("--rows", type=int, default=10_000_000, help="events on each side")
    parser.add_argument(
        "--incremental-rows", type=int, default=200_000, help="events of an incremental run"
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternating runs of each")
    asked = parser.parse_args()
    return ReconcileSizes(
        rows=asked.rows,
        small_rows=max(1, asked.rows // 10),
        incremental_rows=asked.incremental_rows,
        rounds=asked.rounds,
    )
