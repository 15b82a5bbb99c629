"""Wake-up hints from writers to relays over PostgreSQL's LISTEN and NOTIFY.

A hint is sent after the commit, on a connection of its own, at most once in 10 ms: NOTIFY inside
the business transactions would serialise their commits. A lost hint costs a poll interval, nothing
else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from psycopg import sql
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

PAUSE = 0.01
"""Seconds between two hints of one process."""

RECONNECT = 5.0
"""Seconds before a lost connection is tried again."""


def channel_of(schema: str | None) -> str:
    """Return the name of the channel of a schema's outbox."""
    return f"shieldtx_{schema or 'default'}"


class Notifier:
    """Tells the relays of a database that something was committed."""

    def __init__(self, engine: Engine, schema: str | None) -> None:
        self._engine = engine
        self._statement = f'NOTIFY "{channel_of(schema)}"'
        self._wanted = threading.Event()
        self._starting = threading.Lock()
        self._pid = 0

    def hint(self) -> None:
        """Ask for a hint; returns at once."""
        # A thread does not survive a fork, so each process starts its own.
        if self._pid != os.getpid():
            with self._starting:
                if self._pid != os.getpid():
                    self._wanted = threading.Event()
                    threading.Thread(
                        target=self._send_for_ever, name="shieldtx-notify", daemon=True
                    ).start()
                    self._pid = os.getpid()
        self._wanted.set()

    def _send_for_ever(self) -> None:
        wanted = self._wanted
        while True:
            try:
                with self._engine.connect().execution_options(
                    isolation_level="AUTOCOMMIT"
                ) as connection:
                    while wanted.wait():
                        wanted.clear()
                        connection.exec_driver_sql(self._statement)
                        time.sleep(PAUSE)
            except SQLAlchemyError as error:
                log.debug("no wake-up hints for %s s: %s", RECONNECT, error)
                time.sleep(RECONNECT)


class Listener:
    """Calls `wake` for every hint, from a thread of its own, until closed."""

    def __init__(self, engine: Engine, schema: str | None, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._channel = channel_of(schema)
        self._wake = wake
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="shieldtx-listen", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening, within a second or so."""
        self._closed.set()
        self._thread.join(timeout=3)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen_once()
            except Exception as error:  # noqa: BLE001  any failure only means polling for a while
                log.info("no wake-up hints for %s s, polling instead: %s", RECONNECT, error)
                self._closed.wait(RECONNECT)

    def _listen_once(self) -> None:
        connection = self._engine.raw_connection()
        try:
            driver = connection.driver_connection
            if driver is None:
                return
            driver.autocommit = True
            driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            # What was committed before LISTEN took hold sent no hint to us.
            self._wake()
            while not self._closed.is_set():
                for _ in driver.notifies(timeout=1.0, stop_after=1):
                    self._wake()
        finally:
            # Not given back to the pool: it listens, and is in autocommit.
            connection.detach()
            connection.close()
