"""What a worker has to know of its process: steps of the clock, the end of the main thread."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime


def main_thread_has_returned() -> bool:
    """Return whether the interpreter waits for the threads that are left.

    It waits first for those of pools, where the passes run, while the main thread is still alive.
    Only a private flag tells so; without it, a pass that never ends by itself would not be ended.
    """
    return not threading.main_thread().is_alive() or getattr(threading, "_SHUTTING_DOWN", False)


def wall_clock_lead() -> float:
    """Return by how many seconds the wall clock is ahead of the one that nobody can set."""
    return datetime.now(UTC).timestamp() - time.monotonic()
