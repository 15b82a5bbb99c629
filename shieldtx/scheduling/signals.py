"""Signals that end a process gracefully."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GRACEFUL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def graceful_signals(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Have SIGTERM, SIGINT and SIGHUP call `on_signal` with their number, within the block.

    An ignored SIGHUP stays ignored, as under nohup. The earlier handlers are restored at the end.
    Only for the main thread; `on_signal` may raise an exception that ends the block.
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
            if handler is not None:  # None: the handler was not set by Python
                signal.signal(number, handler)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer these signals to the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _GRACEFUL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
