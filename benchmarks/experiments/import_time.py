"""The time that `import shieldtx` takes in a new process, in a service that only writes events."""

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
shieldtx.ShieldTx, shieldtx.Event, shieldtx.RetryPolicy
print(perf_counter() - began)
"""
"""Names are loaded at their first use: those that a service declares its events with count too."""


def run(bench: Bench) -> ExperimentResult:
    """Import in several processes, one after the other."""
    bench.say(f"import shieldtx in {PROCESSES} processes")
    # The first one may compile the modules, and read them from the disk.
    _seconds()
    return ExperimentResult(
        figures={"import_s": measured([_seconds() for _ in range(PROCESSES)])}, absolutes={}
    )


def _seconds() -> float:
    command = [sys.executable, "-c", _TIMED]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)  # noqa: S603  a fixed program
    return float(done.stdout)
