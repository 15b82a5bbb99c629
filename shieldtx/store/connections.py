"""The engines that shieldtx uses: how they connect, and when they drop a connection."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection, QueuePool

from shieldtx.errors import ConfigurationError
from shieldtx.store.dialects import AUTOCOMMIT_ISOLATION, dialect_of
from shieldtx.store.idleness import limit_each_transaction

MAX_LIFETIME: Final = timedelta(minutes=5)
"""A connection of this age is replaced: the server's name may lead to another server by then."""

MAX_CONNECTIONS: Final = 15
_KEPT: Final = 5
"""Connections that stay open in a pool, which is SQLAlchemy's default."""

_IDLE_S: Final = 0.5
"""A connection that was unused for longer gets a ping first: the server may have closed it."""

_ASYNCHRONOUS: Final = ("postgresql+psycopg", "postgresql+asyncpg")

_IDLE_SINCE: Final = "shieldtx.idle_since"
_OPENED_BY: Final = "shieldtx.opened_by"


class Pooler(StrEnum):
    """The pooler between shieldtx and the server."""

    NONE = "none"
    """No pooler, or a pooler that gives each client its own server connection."""
    TRANSACTION = "transaction"
    """PgBouncer in transaction mode, or similar: a session lasts for one transaction."""


def open_engine(
    url: URL,
    *,
    idle: Callable[[], timedelta],
    pooler: Pooler = Pooler.NONE,
    most: int = MAX_CONNECTIONS,
    kept: int = 0,
    create: Callable[..., Engine] = create_engine,
) -> Engine:
    """Return an engine for shieldtx's own statements, which connects at its first use.

    The server ends a transaction whose client has been silent for `idle`, which is called for each
    new connection. If a server became read-only, shuts down or refuses the role, the engine closes
    all connections of the pool. The pool has at most `most` connections at a time, and keeps `kept`
    of them open, at least 5.
    """
    dialect = dialect_of(url.get_dialect()())
    pooled = pooler is Pooler.TRANSACTION
    kept = max(kept, _KEPT)
    pool = {"pool_size": kept, "max_overflow": most - kept} if dialect.has_server else {}
    engine = create(
        url,
        **pool,
        # Logs and tables get the errors of handlers' statements, but not their parameters.
        hide_parameters=True,
        pool_recycle=int(MAX_LIFETIME.total_seconds()),
        **dialect.engine_arguments(url, pooled=pooled),
    )
    if not dialect.has_server:
        return engine
    event.listen(engine, "handle_error", _invalidate_pool)
    event.listen(engine, "connect", _record_opener)
    event.listen(engine, "checkin", _record_checkin)
    event.listen(engine, "checkout", partial(_ping_idle_connection, weakref.ref(engine)))
    renew_after_fork(engine)
    if pooled:
        limit_each_transaction(engine, idle)
    else:
        set_options = partial(_set_session_options, lambda: dialect.session_arguments(url, idle()))
        event.listen(engine, "do_connect", set_options)
        # The sessions of this engine are READ COMMITTED by default.
        engine.update_execution_options(**{AUTOCOMMIT_ISOLATION: "AUTOCOMMIT"})
    return engine


def create_asynchronous(url: URL, **arguments: Any) -> Engine:
    """Return the engine inside an AsyncEngine: its statements need a greenlet on an event loop."""
    return create_async_engine(url, **arguments).sync_engine


def read_committed_view(engine: Engine) -> Engine:
    """Return a view of an application's engine at the isolation level that shieldtx needs.

    Raises ConfigurationError like `accept_engine`.
    """
    accept_engine(engine)
    return _view(engine)


def coroutine_view(engine: AsyncEngine) -> Engine:
    """Return such a view of the engine inside an AsyncEngine, for coroutine functions.

    Raises ConfigurationError for a driver with which shieldtx is not tested, and for another
    isolation level like `accept_engine`.
    """
    inside = engine.sync_engine
    name = f"{inside.dialect.name}+{inside.dialect.driver}"
    if name not in _ASYNCHRONOUS:
        raise ConfigurationError(
            f"async_engine has the driver {name}: make it by create_async_engine() with one of "
            f"{', '.join(_ASYNCHRONOUS)}"
        )
    _require_isolation(inside)
    renew_after_fork(inside)
    return _view(inside)


def require_connections(engine: Engine, needed: int, *, what: str) -> None:
    """Raise ConfigurationError if an application's pool is too small for `what` needs.

    Handlers would wait for each other's connections until the pool's timeout.
    """
    pool = engine.pool
    if not isinstance(pool, QueuePool):
        return
    overflow = pool._max_overflow  # noqa: SLF001  no public attribute has it
    most = pool.size() + overflow
    if overflow >= 0 and most < needed:
        raise ConfigurationError(
            f"the pool of the given engine has at most {most} connections, and {what} needs "
            f"{needed}: make the engine with pool_size={needed}, or lower the concurrency"
        )


def _view(engine: Engine) -> Engine:
    dialect = dialect_of(engine.dialect)
    if not dialect.has_server:
        return engine
    return engine.execution_options(isolation_level=dialect.engine_isolation)


def accept_engine(engine: Engine) -> None:
    """Make forked processes renew the connections of an application's engine.

    Raises ConfigurationError for an asynchronous engine. Raises it too if the execution options
    set another isolation level than shieldtx needs: they would prevail over those of a view.
    """
    # The engine inside an AsyncEngine has the same driver, which needs an awaiting greenlet.
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"the engine is asynchronous ({engine.dialect.name}+{engine.dialect.driver}), and "
            "shieldtx waits for its own statements: pass one made by sqlalchemy.create_engine() "
            "for the same database (driver `psycopg`). Sessions of the service may stay "
            "asynchronous"
        )
    _require_isolation(engine)
    renew_after_fork(engine)


def _require_isolation(engine: Engine) -> None:
    needed = dialect_of(engine.dialect).engine_isolation
    given = engine.get_execution_options().get("isolation_level", needed)
    if given != needed:
        raise ConfigurationError(
            f"the engine has isolation_level={given!r} among its execution options, where shieldtx "
            f"cannot change it to {needed!r}: pass an engine without that option, or one made by "
            f"create_engine(url, isolation_level={given!r})"
        )


def renew_after_fork(engine: Engine) -> None:
    """Make a forked process open its own connections: two would read each other's responses."""
    if dialect_of(engine.dialect).has_server:
        os.register_at_fork(after_in_child=partial(_forget_pool, weakref.ref(engine)))


def _forget_pool(engine: weakref.ref[Engine]) -> None:
    known = engine()
    if known is not None:
        known.dispose(close=False)


def _invalidate_pool(context: ExceptionContext) -> None:
    if dialect_of(context.dialect).needs_another_connection(context.original_exception):
        context.is_disconnect = True


def _record_opener(connection: Any, entry: ConnectionPoolEntry) -> None:  # noqa: ARG001  SQLAlchemy's signature
    entry.info[_OPENED_BY] = os.getpid()


def _record_checkin(connection: Any, entry: ConnectionPoolEntry) -> None:  # noqa: ARG001  SQLAlchemy's signature
    entry.info[_IDLE_SINCE] = time.monotonic()


def _ping_idle_connection(
    engine: weakref.ref[Engine],
    connection: Any,
    entry: ConnectionPoolEntry,
    proxy: PoolProxiedConnection,
) -> None:
    """Make the pool replace a connection that the server has closed, or another process opened.

    Only idle connections get a ping: one at each checkout would cost a busy worker time.
    """
    if entry.info[_OPENED_BY] != os.getpid():
        # After a fork without Python's hooks (uWSGI). A close would end the connection there too.
        entry.dbapi_connection = proxy.dbapi_connection = None  # type: ignore[misc]
        raise DisconnectionError("the connection belongs to another process")
    since, owner = entry.info.pop(_IDLE_SINCE, None), engine()
    if since is None or owner is None or time.monotonic() - since < _IDLE_S:
        return
    try:
        owner.dialect.do_ping(connection)
    except owner.dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError("the server has closed the connection") from error


def _set_session_options(
    options: Callable[[], Mapping[str, Any]],
    _dialect: Any,
    _entry: ConnectionPoolEntry,
    _arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    named |= options()
