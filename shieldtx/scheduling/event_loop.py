"""An asyncio event loop in a thread of its own, for the coroutine functions of an application."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from sqlalchemy.util import greenlet_spawn

from shieldtx._coroutines import note_end
from shieldtx.scheduling.settled import Settled, results_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""Seconds that the tasks of a loop have to end when they are cancelled."""
_CLOSE_S: Final = 4 * _PATIENCE_S
"""Seconds that `close` waits for the thread of a loop."""


class EventLoop:
    """Runs plain functions that may wait for coroutines, with SQLAlchemy's greenlets.

    The loop lives from its first use until `close`, so that clients which belong to a loop (an
    HTTP client, a pool of connections) serve one call after the other. Safe for any number of
    threads, but not for the loop's own: a function on the loop that waits for another would wait
    for ever, and gets a RuntimeError.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet."""
        self._name = name
        self._starting = threading.Lock()
        self._running: _Running | None = None

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run calls at the same time, and return their results; see the port Lanes for errors.

        A task of the application that raises SystemExit or the like ends the loop: the error is
        raised here, and by every later call.
        """
        running = self._start()
        if running.thread is threading.current_thread():
            raise RuntimeError(
                f"a function on the event loop {self._name} waits for another one, which would "
                "never run: await it instead"
            )
        futures = running.submit(calls)
        settled = [future.result() for future in futures]
        if running.error is not None:
            raise running.error
        return results_of(settled)

    def close(self, last: Sequence[Callable[[], object]] = ()) -> None:
        """Cancel the tasks that are left on the loop, run the `last` calls on it, and end it."""
        with self._starting:
            running, self._running = self._running, None
        if running is not None and running.thread.is_alive():
            running.end(last)

    def _start(self) -> _Running:
        with self._starting:
            running = self._running
            # A forked process has the object, but not the thread.
            if running is None or not (running.thread.is_alive() or running.error):
                running = self._running = _Running(self._name)
            return running


class _Running:
    """A loop that runs in its thread, until its end or an error that ends it."""

    def __init__(self, name: str) -> None:
        # In the caller's thread, which gets the error if there is no descriptor left.
        self._loop = asyncio.new_event_loop()
        self.error: BaseException | None = None
        self._is_over = False
        self._submitting = threading.Lock()
        self._last: Sequence[Callable[[], object]] = ()
        self._finishing: asyncio.Task[None] | None = None
        self.thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.thread.start()

    def submit(self, calls: Sequence[Callable[[], T]]) -> list[Future[Settled[T]]]:
        """Begin calls; after the end of the loop, raise the error that ended it."""
        with self._submitting:
            if self._is_over:
                raise self.error or RuntimeError("the event loop is closed")
            return [asyncio.run_coroutine_threadsafe(_settled(call), self._loop) for call in calls]

    def end(self, last: Sequence[Callable[[], object]]) -> None:
        """End the loop, and wait for its thread for a limited time."""
        self._last = last
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join(_CLOSE_S)
        if self.thread.is_alive():
            log.warning(
                "event loop does not end",
                extra={"action": "event_loop_not_closed", "waited_s": _CLOSE_S},
            )

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001  raised where a call is waited for
            self.error = error
        note_end(self._loop)
        with self._submitting:
            self._is_over = True
        try:
            self._wind_up()
        finally:
            self._loop.close()

    def _wind_up(self) -> None:
        """Cancel all tasks, so that no call is waited for in vain; then make the last calls."""
        self._finish(self._cancel_all())
        for call in self._last:
            self._finish(_settled(call))
        self._finish(self._loop.shutdown_asyncgens())

    def _finish(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine for a limited time, whatever else ends the loop meanwhile."""
        task = self._finishing = self._loop.create_task(_limited(coroutine))
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except BaseException as error:  # noqa: BLE001  each is one more that wants to end the process
                self.error = self.error or error

    async def _cancel_all(self) -> None:
        """Cancel all other tasks, and wait for their end."""
        others = asyncio.all_tasks() - {asyncio.current_task(), self._finishing}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_PATIENCE_S)


async def _limited(coroutine: Coroutine[Any, Any, object]) -> None:
    await asyncio.wait({asyncio.ensure_future(coroutine)}, timeout=_PATIENCE_S)


async def _settled(call: Callable[[], T]) -> Settled[T]:
    """Run a call in a greenlet; SystemExit and the like are returned, since they end a loop."""
    try:
        return await greenlet_spawn(call), None
    except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
        return None, error
