"""How many rows of the tables each statement reads, by PostgreSQL's own count."""

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
    """What one statement has read."""

    rows: int
    statement: str


@contextmanager
def rows_read(engine: Engine) -> Iterator[list[Read]]:
    """Gather in the meantime how many rows of shieldtx's tables each statement reads.

    It counts what scans fetch from the tables, whether a condition then keeps the row or not.
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
    # By the driver's own cursor: SQLAlchemy would call the listeners again.
    with connection.connection.cursor() as cursor:
        cursor.execute(_COUNTED)
        [counted] = cursor.fetchone()
    return int(counted)
