"""The connections of a service: its engines, and the hints that wake its relays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from shieldtx.errors import ConfigurationError
from shieldtx.scheduling.event_loop import EventLoop
from shieldtx.settings.settings import Settings
from shieldtx.store.connections import (
    MAX_CONNECTIONS,
    Pooler,
    coroutine_view,
    create_asynchronous,
    open_engine,
    read_committed_view,
    require_connections,
)
from shieldtx.store.idleness import SHORTEST, limited_view
from shieldtx.store.notify import Listener, Notifier
from shieldtx.store.table_location import TableLocation
from shieldtx.store.tables import Tables, tables

T = TypeVar("T")

_CONNECTIONS_OF_A_PASS: Final = 4
"""Connections that a consumer needs besides those of its handlers."""

_CONCURRENCY: Final = "SHIELDTX_CONSUMER_CONCURRENCY"

log = logging.getLogger(__name__)


class Connections:
    """Opens the engines of the settings at their first use, and closes those that it has opened."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None,
        async_engine: AsyncEngine | None,
        longest_lease: Callable[[], timedelta],
    ) -> None:
        """Connect to nothing yet; given engines replace the URL of the settings.

        A connection may be idle in a transaction for as long as a handler's `longest_lease`.
        """
        self._settings = settings
        self._given = engine
        self._given_async = async_engine
        self._longest_lease = longest_lease
        self._is_coroutine_engine_checked = False
        self.event_loop = EventLoop("shieldtx-coroutines")
        """The event loop of this application's coroutine functions, which starts when needed."""

    @cached_property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return tables(self._settings.database_schema)

    @cached_property
    def engine(self) -> Engine:
        """The engine of relay and consumers; services write through sessions of their own."""
        if self._given is not None:
            return read_committed_view(self._given)
        return self._open_engine(idle=self._longest_idleness)

    @cached_property
    def handler_engine(self) -> Engine:
        """The engine of handlers in several threads, with a connection for each thread.

        Raises ConfigurationError if the pool of a given engine is too small.
        """
        if self._given is not None:
            needed = self._settings.consumer_concurrency + _CONNECTIONS_OF_A_PASS
            require_connections(self._given, needed, what=_CONCURRENCY)
            return self.engine
        return self._open_handler_engine()

    @cached_property
    def coroutine_engine(self) -> Engine:
        """The engine of coroutine functions: its statements need a greenlet on the event loop.

        Raises ConfigurationError where the application has given one of the two engines alone, and
        if the pool of a given engine is too small.
        """
        if self._given_async is not None:
            needed = self._settings.consumer_concurrency
            require_connections(self._given_async.sync_engine, needed, what=_CONCURRENCY)
            return coroutine_view(self._given_async)
        if not self.has_server:
            raise ConfigurationError(
                "a handler, a local rollback or a compensation is a coroutine function, which "
                "SQLite does not support: use PostgreSQL, or a plain function"
            )
        if self._given is not None:
            raise ConfigurationError(
                "a handler is a coroutine function, and ShieldTx has the engine of plain "
                "functions alone: give it ShieldTx(..., async_engine=create_async_engine(url)) "
                "for the same database too"
            )
        return self._open_handler_engine(create=create_asynchronous)

    def run_on_loop(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run calls that use the coroutine engine on the event loop; return their results.

        Raises ConfigurationError if that engine leads to other tables than the service's engine.
        """
        if not self._is_coroutine_engine_checked:
            self.event_loop.run([self._check_coroutine_engine])
            self._is_coroutine_engine_checked = True
        return self.event_loop.run(calls)

    def _check_coroutine_engine(self) -> None:
        location = TableLocation(self.engine, self.tables.inbox)
        with self.coroutine_engine.connect() as connection:
            if not location.is_reached_by(connection):
                raise ConfigurationError(
                    "async_engine of ShieldTx leads to another database or schema than its engine, "
                    f"where {self.tables.inbox.fullname} is not there or is another table: pass "
                    "engines of the same database"
                )

    @cached_property
    def relay_engine(self) -> Engine:
        """The engine of a relay's own transactions: a stopped relay loses them with its lease.

        The pool is separate, since claims run without a BEGIN that could limit their idle time.
        With a given engine, or through a pooler, each transaction is limited.
        """
        lease = max(self._settings.relay_lease, SHORTEST)
        is_session_ours = self._given is None and self.has_server
        if is_session_ours and self._settings.database_pooler is Pooler.NONE:
            return self._open_engine(idle=lambda: lease)
        return limited_view(self.engine, idle=lease)

    @cached_property
    def checks_engine(self) -> Engine:
        """The engine of a relay's checks of half messages, which wait for other transactions.

        The pool is separate: events are sent however long the checks wait. A given engine also
        serves the checks.
        """
        if self._given is not None or not self.has_server:
            return self.engine
        most = MAX_CONNECTIONS + self._settings.half_check_threads
        return self._open_engine(idle=self._longest_idleness, most=most)

    def hint(self) -> None:
        """Wake the relays, after a commit that wrote an event."""
        if self._sends_hints:
            self._notifier.hint()

    def listener(self, wake: Callable[[], None]) -> Listener | None:
        """Return the listener for wake-up hints; None where hints are not available.

        A transaction pooler keeps no session that could listen: a relay that connects through it
        only polls.
        """
        if not self._sends_hints:
            return None
        if self._settings.database_pooler is Pooler.TRANSACTION:
            log.info(
                "transaction pooler: relay polls only", extra={"action": "wake_ups_unavailable"}
            )
            return None
        return Listener(self.engine, self._settings.database_schema, wake)

    def close(self) -> None:
        """Close the engines that this object has opened."""
        opened = vars(self)
        if "_notifier" in opened:
            self._notifier.close()
        # On its loop, to which the connections belong, also those of a given engine.
        self.event_loop.close(
            [self.coroutine_engine.dispose] if "coroutine_engine" in opened else []
        )
        if self._given is not None:
            return
        for name in ("engine", "relay_engine", "checks_engine", "handler_engine"):
            if name in opened:
                opened[name].dispose()

    def _open_handler_engine(self, **how: Any) -> Engine:
        """Open an engine whose pool keeps a connection for each key handled at the same time."""
        count = self._settings.consumer_concurrency
        return self._open_engine(
            idle=self._longest_idleness, most=MAX_CONNECTIONS + count, kept=count, **how
        )

    def _open_engine(self, *, idle: Callable[[], timedelta], **how: Any) -> Engine:
        s = self._settings
        return open_engine(s.url, idle=idle, pooler=s.database_pooler, **how)

    def _longest_idleness(self) -> timedelta:
        """Return a handler's longest idle time; handlers may be declared after the first use."""
        return max(self._longest_lease(), self._settings.relay_lease)

    @cached_property
    def has_server(self) -> bool:
        """Whether the database is a server, to which a process may have several connections."""
        return self._settings.url.get_backend_name() == "postgresql"

    @cached_property
    def _sends_hints(self) -> bool:
        return self._settings.relay_wakeup and self.has_server

    @cached_property
    def _notifier(self) -> Notifier:
        return Notifier(self.engine, self._settings.database_schema)
