"""Whether a caller's connection reaches the same table as shieldtx's own engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from weakref import WeakSet

from sqlalchemy import URL, Connection, Engine, MetaData, Pool, Table

from shieldtx.errors import TransactionRefused
from shieldtx.store.dialects import dialect_of

_CHECKED_THERE = (
    "in which a check would look: declare `shield.barrier(..., engine=...)` with the engine of the "
    "local transaction. Of a session with several databases guard the connection to that one: "
    "guard(session.connection(bind_arguments={'mapper': ...}))"
)


class TableLocation:
    """A table in the database of an engine, which callers reach through their own engines.

    Engines and URLs do not identify a database: several of each may lead to it, directly and
    through a pooler. So a query goes to both servers, once for each pool of connections. The pool
    that the engine and its views share needs no query, nor does a pool that has agreed before.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        *,
        advice: str = _CHECKED_THERE,
        longest_s: float | None = None,
    ) -> None:
        """Compare with the table that an engine reaches; `advice` is the end of the error message.

        With `longest_s`, `check` raises TimeoutError if the engine takes longer to respond. By
        default its connection waits for 10 s, and an event loop would wait with it.
        """
        self._engine = engine
        self._longest_s = longest_s
        self._table = table
        self._advice = advice
        self._agreeing: WeakSet[Pool] = WeakSet()
        # A view of an engine may lead to another schema than the engine itself.
        redirected = engine.get_execution_options().get("schema_translate_map") or {}
        self._is_redirected = table.schema in redirected
        schema = redirected.get(table.schema, table.schema)
        self._as_found = Table(table.name, MetaData(), schema=schema)
        """The table with its name after the redirection of the engine."""

    def check(self, connection: Connection) -> None:
        """Raise TransactionRefused if a connection reaches another table of the same name.

        Unknown values are not a reason: a role may lack the privilege to read its server's number.
        """
        if not self.is_reached_by(connection):
            raise TransactionRefused(
                f"this connection leads to {_address(connection.engine.url)}, where "
                f"{self._table.fullname} is not there or is another table than the one in "
                f"{_address(self._engine.url)}, {self._advice}"
            )

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection reaches the table; True if this is unknown."""
        pool = connection.engine.pool
        if (pool is self._engine.pool and not self._is_redirected) or pool in self._agreeing:
            return True
        if not self._agrees(connection):
            return False
        self._agreeing.add(pool)
        return True

    def _agrees(self, connection: Connection) -> bool:
        if connection.dialect.name != self._engine.dialect.name:
            return False
        dialect = dialect_of(self._engine.dialect)
        if connection.engine.pool is self._engine.pool:
            # Over the same connection: the caller may hold the pool's only connection.
            own = dialect.table_identity(connection, self._as_found)
            return own == dialect.table_identity(connection, self._table)
        own = self._own_identity()
        found = dialect.table_identity(connection, self._table)
        # A second try in case the server was restarted, or failed over to its standby, meanwhile.
        return _is_same(own, found) or _is_same(self._own_identity(), found)

    def _own_identity(self) -> tuple[object, ...]:
        if self._longest_s is None:
            return self._ask()
        answer: Future[tuple[object, ...]] = Future()
        # Not from a pool: a daemon thread does not delay the end of the process.
        Thread(target=_into, args=(answer, self._ask), daemon=True).start()
        try:
            return answer.result(self._longest_s)
        except TimeoutError:
            if answer.done():
                raise
            where = _address(self._engine.url)
            raise TimeoutError(f"{where} did not answer within {self._longest_s} s") from None

    def _ask(self) -> tuple[object, ...]:
        with self._engine.connect() as own:
            return dialect_of(own.dialect).table_identity(own, self._table)


def _into(answer: Future[tuple[object, ...]], ask: Callable[[], tuple[object, ...]]) -> None:
    try:
        answer.set_result(ask())
    except BaseException as error:  # noqa: BLE001  raised by `result`
        answer.set_exception(error)


def _is_same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a == b for a, b in pairs if a is not None and b is not None)


def _address(url: URL) -> str:
    """Return the address of a database without the secrets of its URL."""
    plain = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database)
    return plain.render_as_string()
