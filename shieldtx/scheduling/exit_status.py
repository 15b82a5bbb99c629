"""Exit statuses of worker processes, and the exit of a process that hangs."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NoReturn

EXIT_STOPPED = 0


EXIT_NOT_GRACEFUL = 1


EXIT_HUNG = 70
"""EX_SOFTWARE of sysexits.h: the watchdog ended the process."""


EXIT_FAILING = 75
"""EX_TEMPFAIL of sysexits.h: no pass succeeded for too long; a new process may succeed."""


_LARGEST_STATUS = 255


_LOG_S: Final = 0.5
"""Seconds that a process which ends at once waits for its last log record."""


def status_of(error: BaseException) -> int:
    """Return the exit status of a process that `error` ends: its own code, or 1; never 0."""
    code = error.code if isinstance(error, SystemExit) else None
    return code if isinstance(code, int) and 0 < code <= _LARGEST_STATUS else EXIT_NOT_GRACEFUL


def leave(status: int) -> NoReturn:
    """End the process at once: threads that hang would block an orderly exit for ever.

    Logs are not flushed, because that would wait for a thread that hangs in a log call.
    """
    os._exit(status)


def log_briefly(write: Callable[[], None]) -> None:
    """Write a log record from a signal handler, before `leave`; wait only briefly for its end.

    The code that the signal interrupts may hold the lock of the log, or of starting threads.
    """
    written: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        write()
        written.put(None)

    with suppress(Empty, RuntimeError):
        _thread.start_new_thread(run, ())
        written.get(timeout=_LOG_S)
