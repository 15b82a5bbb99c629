"""A worker's own thread, which takes calls for as long as the worker runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class SingleThread(ThreadPoolExecutor):
    """Makes one call at a time, in the order of submission, each once.

    Where the thread cannot start, the caller's thread makes the call. The system may have no thread
    left, or the interpreter may be ending: Python then ends pool threads before a host's threads,
    whose worker still has work to finish.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._latest: Future[Any] | None = None

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Make a call in the thread, or at once in the caller's where none can start."""
        call = _Once(partial(fn, *args, **kwargs))
        made: Future[R]
        try:
            made = super().submit(call)
        except RuntimeError:
            # The pool may have queued the call already, for the thread that it could not start.
            made = self._made_here(call)
        self._latest = made
        return made

    def _made_here(self, call: _Once[R]) -> Future[R]:
        if self._latest is not None:
            # The thread may still run the latest call; earlier calls have ended.
            self._latest.exception()
        made: Future[R] = Future()
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised by `result`, as from the thread
            made.set_exception(error)
        return made


class _Once(Generic[R]):
    """A call that runs once, in the thread that takes it first."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._call = call
        self._taken = threading.Lock()

    def __call__(self) -> R:
        if not self._taken.acquire(blocking=False):
            raise CancelledError("the caller has made this call itself")
        return self._call()
