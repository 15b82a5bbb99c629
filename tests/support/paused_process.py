"""Processes that are stopped for a while: no thread runs, and connections stay open."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_S = 10.0


@contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """Stop a process for the duration of the block, in which none of its threads runs."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        _await_standstill(pid)
        yield
    finally:
        with suppress(ProcessLookupError):  # killed meanwhile
            os.kill(pid, signal.SIGCONT)


def _await_standstill(pid: int) -> None:
    """Wait for every thread: `kill` returns before they stop, and a broker still answers then."""
    deadline = time.monotonic() + _PATIENCE_S
    while not all(state == "T" for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} has not stopped: {_states(pid)}"
        time.sleep(0.001)


def _states(pid: int) -> list[str]:
    """Return the kernel's state letter of each thread; see proc(5), `stat`."""
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states
