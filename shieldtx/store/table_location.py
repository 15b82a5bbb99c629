"""Whether a caller's connection reaches the same table as shieldtx's own engine."""

from __future__ import annotations

from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, Pool, Table

from shieldtx.errors import TransactionRefused
from shieldtx.store.dialects import dialect_of

_CHECKED_THERE = (
    "in which a check would look: declare `shield.barrier(..., engine=...)` with the engine of the "
    "local transaction. Of a session with several databases guard the connection to that one: "
    "guard(session.connection(bind_arguments={'mapper': ...}))"
)


class TableLocation:
    """A table in the database of an engine, which callers reach by engines of their own.

    Engines and URLs do not tell: one database may be reached by several of each, directly and
    through a pooler. So both servers are asked, once for each pool of connections: of those that
    an engine and its views share, and of those that were found to agree, none is asked again.
    """

    def __init__(self, engine: Engine, table: Table, *, advice: str = _CHECKED_THERE) -> None:
        """Compare with what an engine reaches; `advice` ends what is said of another table."""
        self._engine = engine
        self._table = table
        self._advice = advice
        self._agreeing: WeakSet[Pool] = WeakSet()
        # A view of an engine may lead to another schema than the engine itself.
        self._is_redirected = "schema_translate_map" in engine.get_execution_options()

    def check(self, connection: Connection) -> None:
        """Raise TransactionRefused when a connection reaches another table of the same name.

        What is unknown is no reason: a role may not be allowed to ask for its server's number.
        """
        if not self.is_reached_by(connection):
            raise TransactionRefused(
                f"this connection leads to {_address(connection.engine.url)}, where "
                f"{self._table.fullname} is not there or is another table than the one in "
                f"{_address(self._engine.url)}, {self._advice}"
            )

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection reaches the table; where that is unknown, it does."""
        pool = connection.engine.pool
        if (pool is self._engine.pool and not self._is_redirected) or pool in self._agreeing:
            return True
        if not self._agrees(connection):
            return False
        self._agreeing.add(pool)
        return True

    def _agrees(self, connection: Connection) -> bool:
        dialect = dialect_of(self._engine.dialect)
        if connection.dialect.name != self._engine.dialect.name:
            return False
        with self._engine.connect() as own:
            expected = dialect.table_identity(own, self._table)
        found = dialect.table_identity(connection, self._table)
        pairs = zip(expected, found, strict=True)
        return all(a == b for a, b in pairs if a is not None and b is not None)


def _address(url: URL) -> str:
    """Name a database without the secrets of its URL."""
    plain = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database)
    return plain.render_as_string()
