"""Events in the transactions of Django's ORM, and a guard for handlers that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.orm import Session

from shieldtx.app.application import ShieldTx
from shieldtx.domain.events import Event
from shieldtx.errors import ConfigurationError, HandlerError, TransactionRefused


class DjangoOutbox:
    """Adds events to the transactions of one of Django's databases.

    An event is inserted at once on Django's own connection, so that it commits or rolls back with
    the rows of the models, in savepoints too. The database must be PostgreSQL with psycopg 3.
    """

    def __init__(self, shield: ShieldTx, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Add events that `shield` declares; `using` is an alias of Django's DATABASES."""
        self._shield = shield
        self._using = using
        # Without hstore: its lookup needs a connection of psycopg's own class.
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=self._borrow,
            poolclass=NullPool,
            use_native_hstore=False,
        )

    def add(
        self,
        event: Event,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        level: int | None = None,
    ) -> UUID:
        """Add an event to the open transaction and return its id; errors as of `shield.outbox`.

        Raises TransactionRefused outside of `transaction.atomic()`, and ConfigurationError for a
        database that is not PostgreSQL with psycopg 3.
        """
        return self.add_all([event], delay=delay, at=at, level=level)[0]

    def add_all(
        self,
        events: Iterable[Event],
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        level: int | None = None,
    ) -> list[UUID]:
        """Add several events and return their ids: all, or none and an error of `add`."""
        with self._connection() as connection:
            ids = self._shield.outbox.add_all(connection, events, delay=delay, at=at, level=level)
        transaction.on_commit(self._shield.connections.hint, using=self._using, robust=True)
        return ids

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        django = connections[self._using]
        if not django.in_atomic_block:
            raise TransactionRefused(
                f"database {self._using!r} has no open transaction, so the event would outlive its "
                "data: add it within `transaction.atomic()`"
            )
        if django.needs_rollback:
            raise TransactionRefused(
                f"the transaction of database {self._using!r} has failed and can only roll back"
            )
        django.ensure_connection()
        # Not the class of the connection, which tools that observe a process replace by their own.
        driver = django.Database.__name__
        if driver != "psycopg":
            raise ConfigurationError(
                f"database {self._using!r} is {django.vendor} with {driver}: events of Django need "
                "PostgreSQL with psycopg 3"
            )
        # A savepoint of Django's: a refused INSERT must not break the transaction of the caller.
        with transaction.atomic(using=self._using), self._engine.connect() as connection:
            yield connection

    def _borrow(self) -> _Borrowed:
        return _Borrowed(connections[self._using].connection)


class _Borrowed:
    """A connection of Django's, which SQLAlchemy may use and not end."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Leave the commit to Django."""

    def rollback(self) -> None:
        """Leave the rollback to Django: SQLAlchemy rolls back each connection that it returns."""

    def close(self) -> None:
        """Leave the connection to Django."""

    def add_notice_handler(self, _handler: Callable[..., None]) -> None:
        """Add nothing: SQLAlchemy adds a handler for each use, and Django keeps the connection."""


def refuse_orm(session: Session, event: Event, proceed: Callable[[], None]) -> None:  # noqa: ARG001  the signature of interceptors
    """Refuse queries of Django's ORM in a handler: `group.intercepts(refuse_orm)`.

    The ORM writes on a connection of its own. What it commits there stays when the attempt fails,
    and happens again at the next one. The handler's `session` has the transaction of the event.
    Coroutine handlers cannot be guarded, and fail: their ORM runs in other threads.
    """
    if _is_on_event_loop():
        raise HandlerError(
            "refuse_orm guards plain handlers only, and this group has coroutine handlers: Django "
            "runs their queries in other threads; leave the interceptor out of this group"
        )
    with ExitStack() as guards:
        for alias in connections:
            guards.enter_context(connections[alias].execute_wrapper(_refuse))
        proceed()


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _refuse(
    execute: Callable[..., Any],  # noqa: ARG001  the signature of Django's wrappers
    sql: str,  # noqa: ARG001
    params: Any,  # noqa: ARG001
    many: bool,  # noqa: ARG001, FBT001
    context: Mapping[str, Any],
) -> NoReturn:
    raise HandlerError(
        f"the handler uses Django's ORM on database {context['connection'].alias!r}, which is not "
        "in the transaction of the event: write with the session that the handler gets"
    )
