"""The signals that end a process gracefully."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GRACEFUL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def graceful_signals(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Have SIGTERM, SIGINT and SIGHUP call `on_signal` with their number, within the block.

    SIGHUP stays ignored where it is, as under nohup. The earlier handlers are back at the end. For
    the main thread only; `on_signal` may raise what ends the block.
    """
    before = {number: signal.getsignal(number) for number in _GRACEFUL}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, lambda number, _: on_signal(number))
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # else it is not Python's
                signal.signal(number, handler)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Have these signals handled at the end of the block, should they come within it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GRACEFUL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
