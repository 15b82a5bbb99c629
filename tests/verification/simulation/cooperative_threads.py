"""Cooperative threads: one runs at a time, and only while the thread that started it waits."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any


class CooperativeThread:
    """The work of one thread; between its start and its end it may pause any number of times."""

    def __init__(self, threads: CooperativeThreads) -> None:
        self._threads = threads
        self._may_run = _closed()
        self._has_stopped = _closed()
        self._call: Callable[[], Any] | None = None
        self._error: BaseException | None = None
        self.is_done = True
        Thread(target=self._run, daemon=True).start()

    def begin(self, call: Callable[[], Any] | None) -> None:
        """Run `call` until it pauses or ends; None ends the thread."""
        self._call, self.is_done = call, False
        self.resume()

    def resume(self) -> None:
        """Continue until it pauses again or ends; raises its exception."""
        before, self._threads.running = self._threads.running, self
        self._may_run.release()
        self._has_stopped.acquire()
        self._threads.running = before
        if self.is_done and self._call is not None:
            self._threads.idle.append(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pause(self) -> None:
        """Return control to the thread that let this one run; called from inside it."""
        self._has_stopped.release()
        self._may_run.acquire()

    def _run(self) -> None:
        while True:
            self._may_run.acquire()
            # Read at once: after the stop, the next call may already be here.
            call = self._call
            if call is not None:
                try:
                    call()
                except BaseException as error:  # noqa: BLE001  raised again where it is waited for
                    self._error = error
            self.is_done = True
            self._has_stopped.release()
            if call is None:
                return


class CooperativeThreads:
    """The threads of one world, which are reused."""

    def __init__(self) -> None:
        self.running: CooperativeThread | None = None
        self.idle: list[CooperativeThread] = []

    def start(self, call: Callable[[], Any]) -> CooperativeThread:
        """Run `call` in a thread until it pauses or ends."""
        thread = self.idle.pop() if self.idle else CooperativeThread(self)
        thread.begin(call)
        return thread

    def close(self) -> None:
        """End all threads; none of them is paused."""
        while self.idle:
            self.idle.pop().begin(None)


def _closed() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock
