"""A thread of a worker's own, which takes calls for as long as the worker runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class SingleThread(ThreadPoolExecutor):
    """Makes one call at a time, in their order.

    When the interpreter ends, Python ends the threads of pools before those of a host. A worker in
    a host's thread has still to finish its work: its calls are then made in the caller's thread.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._latest: Future[Any] | None = None

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Make a call in the thread, or at once where the thread has ended."""
        made: Future[R]
        try:
            made = super().submit(fn, *args, **kwargs)
        except RuntimeError:
            made = self._made_here(lambda: fn(*args, **kwargs))
        self._latest = made
        return made

    def _made_here(self, call: Callable[[], R]) -> Future[R]:
        if self._latest is not None:
            # The thread may still be in it; earlier calls have ended before.
            self._latest.exception()
        made: Future[R] = Future()
        try:
            made.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised by `result`, as from the thread
            made.set_exception(error)
        return made
