"""The garbage collector of a process in which workers run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

_OBJECTS_BETWEEN_COLLECTIONS: Final = 200_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Let the garbage collector look seldom, and at nothing that was there before.

    A batch is some ten thousands of objects, none of them in a circle, which come and go together:
    to look for circles among them, and among all that was imported, takes a good part of a relay's
    time.
    """
    _tuning.begin()
    try:
        yield
    finally:
        _tuning.end()


class _Tuning:
    """The process has one garbage collector: the first worker tunes it, the last restores it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._workers = 0
        self._restore: Callable[[], None] = lambda: None

    def begin(self) -> None:
        with self._lock:
            self._workers += 1
            if self._workers == 1:
                self._restore = _tune()

    def end(self) -> None:
        with self._lock:
            self._workers -= 1
            if self._workers == 0:
                self._restore()


_tuning: Final = _Tuning()


def _tune() -> Callable[[], None]:
    """Tune the garbage collector; return how it becomes what it was."""
    threshold = gc.get_threshold()
    # Objects are thawed all together: a host that has frozen its own keeps them frozen.
    is_frozen = gc.get_freeze_count() > 0
    if not is_frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *threshold[1:])

    def restore() -> None:
        gc.set_threshold(*threshold)
        if not is_frozen:
            gc.unfreeze()

    return restore
