"""A clock that tests move: SQLite's functions of date and time follow it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import Any, Final

from sqlalchemy import Engine, event

from shieldtx.errors import ConfigurationError

_FUNCTIONS: Final = {
    "strftime": 1,
    "date": 0,
    "time": 0,
    "datetime": 0,
    "julianday": 0,
    "unixepoch": 0,
}
"""SQLite's functions of time, and which of their arguments is the time."""

_GOVERNED: Final = "shieldtx_clock"


class MovableClock:
    """The time of a test's databases, which a test moves.

    It stands still, so that no result depends on the speed of the machine. Only a statement of the
    test's own, such as the INSERT of an event, sets it to the time of the machine and what the test
    has added. So an event for `datetime.now() + delay` is due after a move by that delay.
    `CURRENT_TIMESTAMP` and Python's own clock are those of the machine.
    """

    def __init__(self) -> None:
        self._ahead = timedelta(0)
        self._now = datetime.now(UTC)
        self._is_stopped = False
        # SQLite's own functions: a connection that has replaced one cannot call the original.
        self._originals = sqlite3.connect(":memory:", check_same_thread=False)
        self._calling = Lock()

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._now

    def advance(self, delta: timedelta) -> None:
        """Move the clock; raises ConfigurationError for a negative `delta`."""
        if delta < timedelta(0):
            raise ConfigurationError(f"the clock cannot move back by {-delta}")
        self._ahead += delta
        self._now += delta

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the clock stand still during the block, whatever statements there are."""
        self._is_stopped = True
        try:
            yield
        finally:
            self._is_stopped = False

    @contextmanager
    def governing(self, engine: Engine) -> Iterator[None]:
        """Make the clock that of an SQLite database, for its connections during the block."""
        event.listen(engine, "checkout", self._govern)
        try:
            yield
        finally:
            event.remove(engine, "checkout", self._govern)
            # A pool may keep connections, and their functions follow the clock.
            self._ahead, self._now = timedelta(0), datetime.now(UTC)

    def _govern(self, connection: Any, entry: Any, proxy: Any) -> None:  # noqa: ARG002  SQLAlchemy's signature
        if entry.info.get(_GOVERNED) is not self:
            for name, place in _FUNCTIONS.items():
                function = self._function(name, place)
                # Deterministic, since SQLite then calls it once for a whole statement.
                connection.create_function(name, -1, function, deterministic=True)
            entry.info[_GOVERNED] = self

    def _function(self, name: str, place: int) -> Callable[..., Any]:
        return partial(self._call, name, place)

    def _call(self, name: str, place: int, *arguments: Any) -> Any:
        given = list(arguments)
        if len(given) == place:
            given.append("now")
        if isinstance(given[place], str) and given[place].lower() == "now":
            given[place] = self._read().replace(tzinfo=None).isoformat(" ", "milliseconds")
        marks = ", ".join("?" * len(given))
        with self._calling:
            return self._originals.execute(f"SELECT {name}({marks})", given).fetchone()[0]

    def _read(self) -> datetime:
        if not self._is_stopped:
            self._now = max(self._now, datetime.now(UTC) + self._ahead)
        return self._now
