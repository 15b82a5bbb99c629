"""An SQLite database with shieldtx's tables, which exists for one test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, create_engine, event

from shieldtx.store.schema import Schema

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  the names in it are unique


@contextmanager
def memory_database() -> Iterator[Engine]:
    """Open a new database, and remove it at the end of the block.

    A file, in memory where the system has such a folder: connections to SQLite's own databases in
    memory share one transaction, or lock each other out.
    """
    with _folder() as folder:
        path = folder / "service.db"
        path.write_bytes(_migrated())
        engine = _engine(path)
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def _folder() -> Iterator[Path]:
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="shieldtx-test-", dir=where) as folder:
        yield Path(folder)


def _engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    event.listen(engine, "connect", _do_not_wait_for_the_disk)
    return engine


def _do_not_wait_for_the_disk(connection: Any, _entry: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")


@cache
def _migrated() -> bytes:
    """Return the file of a database with empty tables, which a process makes once."""
    with _folder() as folder:
        path = folder / "template.db"
        engine = _engine(path)
        Schema(engine).upgrade()
        with engine.connect() as connection:
            # Readers and the writer then do not wait for each other. The file keeps this mode.
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        engine.dispose()
        return path.read_bytes()
