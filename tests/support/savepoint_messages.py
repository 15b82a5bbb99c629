"""What shieldtx sends about savepoints past SQLAlchemy, whose listeners do not hear it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from shieldtx.store import savepoints


@contextmanager
def savepoint_messages(note: Callable[[str], object]) -> Iterator[None]:
    """Call `note` with each message before it is sent."""
    execute = savepoints._execute

    def note_and_execute(connection: Connection, message: str) -> None:
        note(message)
        execute(connection, message)

    savepoints._execute = note_and_execute
    try:
        yield
    finally:
        savepoints._execute = execute
