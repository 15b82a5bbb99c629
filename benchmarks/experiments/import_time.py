"""The time that `import shieldtx` takes in a new process, and the first use of its names."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from benchmarks.harness.child_process import ROOT
from benchmarks.harness.context import Bench, ExperimentResult
from benchmarks.harness.samples import measured

FIGURES: Final = ("import_s",)
PROCESSES: Final = 11
_TIMED: Final = """
from time import perf_counter
began = perf_counter()
import shieldtx
imported = perf_counter()
shieldtx.ShieldTx, shieldtx.Event, shieldtx.RetryPolicy
print(imported - began, perf_counter() - began)
"""
"""Names are loaded at their first use, with SQLAlchemy and pydantic."""


def run(bench: Bench) -> ExperimentResult:
    """Import in several processes, one after the other."""
    bench.say(f"import shieldtx in {PROCESSES} processes")
    # The first one may compile the modules, and read them from the disk.
    _seconds()
    imported, used = zip(*(_seconds() for _ in range(PROCESSES)), strict=True)
    return ExperimentResult(
        figures={"import_s": measured(imported)},
        absolutes={"import_and_first_use_ms": measured([1_000 * seconds for seconds in used])},
    )


def _seconds() -> tuple[float, float]:
    """Return the seconds until the import is done, and until the names are loaded."""
    command = [sys.executable, "-c", _TIMED]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)  # noqa: S603  a fixed program
    imported, used = map(float, done.stdout.split())
    return imported, used
