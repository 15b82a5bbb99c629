"""Runs of the reconciliation and of the plain join, each in its own Spark, with their costs.

The wall time of a run is measured from outside; the run reports how long its Spark existed. Only
the join shows the start of Spark: the reconciliation queries the databases meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.harness.child_process import BUILD, ROOT
from benchmarks.harness.samples import BenchmarkFailed
from shieldtx.embedded.child_process import log_tail
from shieldtx.reconcile import spark_launcher
from shieldtx.reconcile.request import ReconcileRequest, to_json

_EVERY_S: Final = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """The cost of a run."""

    wall: float
    """Seconds, with Spark's start and end."""
    seconds: float
    """Seconds of these in which Spark existed, without the time before."""
    rss_mb: float
    """Maximum memory of its Python and its Java together."""


class Memory:
    """The highest memory of the processes that this process has started meanwhile."""

    def __init__(self) -> None:
        self.highest_mb = 0.0

    @contextmanager
    def watched(self, *, without: int | None) -> Iterator[None]:
        """Sample repeatedly until the block ends; `without`: a process that does not count."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_EVERY_S):
                self.highest_mb = max(self.highest_mb, _memory_mb(without))

        watcher = threading.Thread(target=watch, name="memory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def reconcile(request: ReconcileRequest, *, without: int | None) -> Timed:
    """Run the reconciliation; raises BenchmarkFailed if it failed."""
    memory, began = Memory(), time.monotonic()
    with memory.watched(without=without):
        result = spark_launcher.run(request)
    wall = time.monotonic() - began
    if result.findings is None:
        raise BenchmarkFailed(result.problem)
    hindered = (
        *result.findings.obstacles,
        *(bounds.window.obstacle for bounds in result.findings.bounds if bounds.window.obstacle),
    )
    if hindered:
        raise BenchmarkFailed(f"not all of it could be judged: {'; '.join(hindered)}")
    return Timed(wall=wall, seconds=result.findings.seconds, rss_mb=memory.highest_mb)


def join(request: ReconcileRequest, *, without: int | None) -> Timed:
    """Run the plain join; raises BenchmarkFailed if it failed or found nothing."""
    log = BUILD / "bench-logs" / "jdbc_join.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    memory, began = Memory(), time.monotonic()
    with memory.watched(without=without), log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.subjects.jdbc_join"],
            input=to_json(request) + b"\n",
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, **spark_launcher.command()[1]},
            check=False,
        )
    wall = time.monotonic() - began
    if done.returncode:
        raise BenchmarkFailed(f"the plain join ended with {done.returncode}:\n{log_tail(log)}")
    said = json.loads(done.stdout.splitlines()[-1])
    if not (said["missing"] or said["unknown"] or said["differing"]):
        raise BenchmarkFailed(f"the plain join has found nothing of what was planted: {said}")
    return Timed(wall=wall, seconds=said["seconds"], rss_mb=memory.highest_mb)


def _memory_mb(without: int | None) -> float:
    total = 0
    for child in psutil.Process().children():
        if child.pid != without:
            with suppress(psutil.NoSuchProcess):
                total += _memory_of_family(child)
    return total / 1e6


def _memory_of_family(head: psutil.Process) -> int:
    """Return the bytes of a process and of all processes that it has started.

    A process that starts another program shares its memory with it for that moment (vfork). Java,
    which does so for each folder that Spark makes, would be counted twice.
    """
    family = {member.pid: _memory(member) for member in (head, *head.children(recursive=True))}
    return sum(
        member.resident
        for member in family.values()
        if (parent := family.get(member.parent)) is None or parent.size != member.size
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    parent: int
    size: int = 0
    """Bytes of its address space: equal for two processes that share their memory."""
    resident: int = 0


def _memory(process: psutil.Process) -> _Memory:
    try:
        with process.oneshot():
            memory = process.memory_info()
            return _Memory(parent=process.ppid(), size=memory.vms, resident=memory.rss)
    except psutil.NoSuchProcess:
        return _Memory(parent=0)
