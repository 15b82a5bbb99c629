"""Process state that a worker needs: steps of the clock, and the end of the main thread."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime


def main_thread_has_returned() -> bool:
    """Return whether the interpreter waits for the remaining threads.

    It waits first for the threads of pools, which run the passes, while the main thread is still
    alive. Only a private flag shows this; without the flag, a pass that never returns would block
    the exit.
    """
    return not threading.main_thread().is_alive() or getattr(threading, "_SHUTTING_DOWN", False)


def wall_clock_lead() -> float:
    """Return by how many seconds the wall clock is ahead of the monotonic clock."""
    return datetime.now(UTC).timestamp() - time.monotonic()
