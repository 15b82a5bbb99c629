"""The statements that psycopg prepares by itself, around a savepoint that may be rolled back.

After each ROLLBACK, psycopg deallocates all prepared statements of the connection. They outlive a
rollback in PostgreSQL. But psycopg may take those of an aborted pipeline for prepared, and those
about tables that the transaction has changed do not fit any more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from shieldtx.errors import HandlerError


class PreparedStatements:
    """The prepared statements of a driver's connection at a savepoint; other drivers have none."""

    __slots__ = ("_driver", "_number", "_paused")

    def __init__(self, driver: Any, *, pauses: bool) -> None:
        """Begin with the savepoint; `pauses`: nothing more is prepared until `resume`.

        A statement that is prepared inside of each savepoint that is rolled back would be
        deallocated again and again, and all others with it.
        """
        self._driver = driver
        self._number = _number_prepared(driver)
        self._paused: int | None = None
        if pauses and self._number is not None and driver.prepare_threshold is not None:
            self._paused, driver.prepare_threshold = driver.prepare_threshold, sys.maxsize

    def resume(self) -> None:
        """Let psycopg prepare statements again, unless user code has set another threshold."""
        paused, self._paused = self._paused, None
        if paused is not None and self._driver.prepare_threshold == sys.maxsize:
            self._driver.prepare_threshold = paused

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the statements in a rollback to the savepoint, if none was prepared after it."""
        driver = self._driver
        if self._number is None or self._number != _number_prepared(driver):
            yield
            return
        with ignored(driver):
            yield


@contextmanager
def ignored(driver: Any) -> Iterator[None]:
    """Execute statements that psycopg shall neither prepare nor count.

    It counts the latest 100 texts (`prepared_max`): the names of savepoints would displace others.
    """
    if _number_prepared(driver) is None:
        yield
        return
    threshold, driver.prepare_threshold = driver.prepare_threshold, None
    try:
        yield
    finally:
        driver.prepare_threshold = threshold


def in_pipeline(connection: Connection) -> bool:
    """Whether user code has left psycopg's connection in its pipeline mode."""
    if connection.closed or connection.invalidated:
        return False
    driver = connection.connection.driver_connection
    return bool(getattr(getattr(driver, "pgconn", None), "pipeline_status", 0))


def refuse_pipeline(connection: Connection, owner: str) -> None:
    """Raise HandlerError if user code has left the connection in its pipeline mode."""
    if in_pipeline(connection):
        raise HandlerError(f"the {owner} left the driver's pipeline open: end its block")


def _number_prepared(driver: Any) -> int | None:
    """Return how many statements psycopg has prepared so far; None for other drivers."""
    number: int | None = getattr(getattr(driver, "_prepared", None), "_prepared_idx", None)
    return number
