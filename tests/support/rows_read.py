"""How many rows of the tables each statement reads, by PostgreSQL's own statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, event

_COUNTED = """
    SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)
    FROM pg_stat_xact_user_tables WHERE relname LIKE 'shield%'
"""


class Read(NamedTuple):
    """The number of rows that one statement has read."""

    rows: int
    statement: str


@contextmanager
def rows_read(engine: Engine) -> Iterator[list[Read]]:
    """Collect how many rows of shieldtx's tables each statement of the block reads.

    The number counts the rows that scans fetch, including those that a condition then removes.
    """
    gathered: list[Read] = []
    before: list[int] = []

    def begin(connection: Connection, *_: Any) -> None:
        before.append(_count(connection))

    def end(connection: Connection, _: Any, statement: str, *__: Any) -> None:
        gathered.append(Read(_count(connection) - before.pop(), statement))

    event.listen(engine, "before_cursor_execute", begin)
    event.listen(engine, "after_cursor_execute", end)
    try:
        yield gathered
    finally:
        event.remove(engine, "before_cursor_execute", begin)
        event.remove(engine, "after_cursor_execute", end)


def _count(connection: Connection) -> int:
    # The driver's own cursor is used: SQLAlchemy would call the listeners again.
    cursor = connection.connection.cursor()
    try:
        cursor.execute(_COUNTED)
        [counted] = cursor.fetchone()
    finally:
        cursor.close()
    return int(counted)
