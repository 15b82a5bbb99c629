"""Wake-up hints from writers to relays over PostgreSQL's LISTEN and NOTIFY.

A hint is sent after the commit, on its own connection, at most once in 5 ms: NOTIFY inside the
business transactions would serialise their commits. A lost hint costs a poll interval, nothing
else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from sqlalchemy import Engine

from shieldtx.store.connections import MAX_LIFETIME

log = logging.getLogger(__name__)

PAUSE = 0.005
"""Seconds between two hints of one process."""

RECONNECT = 5.0
"""Seconds before the next attempt to reach an unreachable server."""


def channel_of(schema: str | None) -> str:
    """Return the name of the channel of a schema's outbox."""
    return f"shieldtx_{schema or 'default'}"


class Notifier:
    """Notifies the relays of a database of commits."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine = engine
        self._statement = f"NOTIFY {channel_of(schema)}"
        self.reset_after_fork()
        # Neither threads nor the locks of other threads survive a fork.
        os.register_at_fork(after_in_child=partial(_reset_after_fork, weakref.ref(self)))

    def hint(self) -> None:
        """Ask for a hint; returns at once, and raises nothing."""
        if self._thread is None:
            self._start()
        self._wanted.set()

    def close(self) -> None:
        """Stop sending and close the connection; later hints are dropped."""
        self._closed.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=3)

    def reset_after_fork(self) -> None:
        """Replace thread and locks, which belong to another process."""
        self._starting = threading.Lock()
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._send, name="shieldtx-notify", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads, or the end of the process: the poll finds the event too.
                log.debug(
                    "wake-up thread did not start",
                    extra={"action": "wake_up_thread_missing", "error": str(error)},
                )
            else:
                self._thread = thread

    def _send(self) -> None:
        wanted, closed = self._wanted, self._closed
        pause = 0.0
        while not closed.wait(pause):
            pause = RECONNECT
            try:
                with closing(_connection_of_its_own(self._engine)) as connection:
                    until = _replaced_at()
                    # `close` wakes this thread once: check `closed` before each wait.
                    while not closed.wait(PAUSE) and time.monotonic() < until:
                        wanted.wait()
                        wanted.clear()
                        connection.execute(self._statement)
                        # A connection that worked once is replaced at once.
                        pause = PAUSE
            except Exception as error:  # noqa: BLE001  any failure only means polling for a while
                log.debug(
                    "wake-ups could not be sent",
                    extra={"action": "wake_ups_not_sent", "delay_s": pause, "error": str(error)},
                )
                # The hint may not have been sent: send it again over the next connection.
                wanted.set()


class Listener:
    """Calls `wake` for every hint, from its own thread, until closed."""

    def __init__(self, engine: Engine, schema: str | None, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._statement = f"LISTEN {channel_of(schema)}"
        self._wake = wake
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="shieldtx-listen", daemon=True)

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, within a second or so."""
        self._closed.set()
        self._thread.join(timeout=3)

    def _listen(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            pause = RECONNECT
            try:
                with closing(_connection_of_its_own(self._engine)) as connection:
                    connection.execute(self._statement)
                    pause = PAUSE
                    # Commits before LISTEN took effect sent no hint to this connection.
                    self._wake()
                    until = _replaced_at()
                    while not self._closed.is_set() and time.monotonic() < until:
                        for _ in connection.notifies(timeout=1.0, stop_after=1):
                            self._wake()
            except Exception as error:  # noqa: BLE001  any failure only means polling for a while
                log.info(
                    "no wake-ups, relay polls",
                    extra={
                        "action": "wake_ups_not_received",
                        "delay_s": pause,
                        "error": str(error),
                    },
                )


def _reset_after_fork(notifier: weakref.ref[Notifier]) -> None:
    known = notifier()
    if known is not None:
        known.reset_after_fork()


def _replaced_at() -> float:
    """Return the time at which a connection that is opened now is replaced."""
    return time.monotonic() + MAX_LIFETIME.total_seconds()


def _connection_of_its_own(engine: Engine) -> Any:
    """Open a connection like the engine's pool, but outside of the pool and in autocommit.

    The connection is held permanently, which would starve a small pool, and a forked process must
    not get it from a pool.
    """
    pooled = engine.pool.recreate().connect()
    connection: Any = pooled.driver_connection
    pooled.detach()
    connection.rollback()
    connection.autocommit = True
    return connection
