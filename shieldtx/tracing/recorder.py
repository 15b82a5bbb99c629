"""Tracing hooks: they record when each attempt was made and its outcome, next to the tables."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from shieldtx.domain.log_throttle import LogThrottle
from shieldtx.domain.reasons import reason_of
from shieldtx.hooks.contexts import ConsumeContext, SendContext
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.tracing import TraceEntry, TraceStore

log = logging.getLogger(__name__)


class TraceRecorder:
    """Collects entries and writes them in its own thread: no event ever waits for them.

    Entries are lost when the process dies, when the database refuses them, or when more than `most`
    entries wait for the database. A loss affects only the trace.
    """

    def __init__(
        self,
        store: Callable[[], TraceStore],
        *,
        every: timedelta = timedelta(seconds=0.5),
        most: int = 50_000,
        batch_size: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing: the first entry creates the thread and the `store`."""
        self._make_store = store
        self._store: TraceStore | None = None
        self._every = every.total_seconds()
        self._most = most
        self._batch_size = batch_size
        self._clock = clock
        self._entries: deque[TraceEntry] = deque()
        self._lost = 0
        self._lines = LogThrottle(clock=clock)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._writing = threading.Lock()
        self._closing = threading.Event()
        self.is_paused = False
        """Whether sends and attempts get no entry."""

    def attach(self, hooks: Hooks) -> None:
        """Register the recorder for the ends of sends and attempts."""
        hooks.after_send(self._sent)
        hooks.on_send_error(self._sent)
        hooks.after_consume(self._consumed)
        hooks.on_consume_error(self._consumed)

    def flush(self) -> None:
        """Write the entries collected so far; never raises."""
        with self._writing:
            while self._entries and self._write():
                pass
            if self._lost and self._lines.admits("lost"):
                log.warning(
                    "trace entries are lost",
                    extra={"action": "trace_entries_lost", "count": self._lost},
                )
                self._lost = 0

    def close(self, *, within: timedelta = timedelta(seconds=3)) -> None:
        """Write the remaining entries, unless the database takes too long."""
        # Under one lock: a concurrent entry would start another thread with another event object.
        with self._starting:
            thread, self._thread = self._thread, None
            self._closing.set()
        if thread is not None:
            thread.join(within.total_seconds())

    def _sent(self, context: SendContext) -> None:
        self._note(
            TraceEntry(
                event_id=context.event_id,
                group=None,
                attempt=context.attempt,
                outcome="" if context.outcome is None else context.outcome.value,
                ended=self._clock(),
                waited=context.waited,
                took=context.took,
                partition=context.partition,
                offset=context.offset,
                reason=context.error,
            )
        )

    def _consumed(self, context: ConsumeContext) -> None:
        self._note(
            TraceEntry(
                event_id=context.event_id,
                group=context.group,
                attempt=context.attempt,
                outcome="" if context.outcome is None else context.outcome.value,
                ended=self._clock(),
                took=context.took,
                partition=context.partition,
                offset=context.offset,
                reason=context.error,
            )
        )

    def _note(self, entry: TraceEntry) -> None:
        if self.is_paused:
            return
        if len(self._entries) >= self._most:
            self._lost += 1
            return
        self._entries.append(entry)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                # Entries after a close start a new thread.
                self._closing = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._closing,), name="shieldtx-trace", daemon=True
                )
                self._thread.start()

    def _run(self, closing: threading.Event) -> None:
        while not closing.wait(self._every):
            self.flush()
        self.flush()

    def _write(self) -> bool:
        """Write one batch; False: the database refused it, and it is lost."""
        batch = [self._entries.popleft() for _ in range(min(len(self._entries), self._batch_size))]
        try:
            if self._store is None:
                self._store = self._make_store()
            self._store.write(batch, clock=self._clock)
        except Exception as error:  # noqa: BLE001  no error may affect an event
            self._lost += len(batch)
            if self._lines.admits("unwritable"):
                log.warning(
                    "trace could not be written",
                    extra={"action": "trace_not_written", "error": reason_of(error)},
                )
            return False
        return True
