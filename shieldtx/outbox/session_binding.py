"""The connection of a session to the database of the events, and the owner of its commit."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Engine, UpdateBase, insert, select
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.ports.outbox import OutboxWriter

_FOLLOWED = {"create_savepoint", "control_fully"}
"""Modes in which an asynchronous session joins its connection's transaction: on close, its
uncommitted events and data are rolled back."""

_LEFT_TO_THE_CONNECTION = (
    "this AsyncSession shares the transaction of its connection, which may commit without the "
    "session: make it with join_transaction_mode='create_savepoint', or add events with "
    "`await session.run_sync(outbox.add, event)`"
)


class SessionBinding:
    """Finds the connection of a session to the database of the events."""

    def __init__(self, session: Session, writer: OutboxWriter) -> None:
        self._session = session
        self._writer = writer

    def connection(self) -> Connection:
        """Return the connection for the INSERT of events."""
        return self._session.connection(
            bind_arguments={"clause": route_of(self._session, self._writer.routed_by)}
        )

    @property
    def connections(self) -> Collection[Connection]:
        """All connections on which the session's transaction has begun."""
        return begun_connections(self._session.get_transaction())

    @property
    def begun_connection(self) -> Connection | None:
        """The connection to the database of the events, if the session has begun on it."""
        return next(filter(self.takes_events, self.connections), None)

    @property
    def bind(self) -> Engine | Connection:
        """The engine or connection by which the session reaches the database of the events."""
        try:
            return self._session.get_bind(clause=route_of(self._session, self._writer.routed_by))
        except UnboundExecutionError as error:
            raise TransactionRefused(
                "the session has databases for its classes or tables only, so that of the events "
                "is unknown: make it with Session(bind=engine, binds={...}), where `engine` is "
                "that of shieldtx's tables"
            ) from error

    @property
    def is_shared(self) -> bool:
        """Whether the session takes part in the transaction of its caller's Connection."""
        return isinstance(self.bind, Connection)

    def controls(self, connection: Engine | Connection) -> bool:
        """Whether closing the session rolls back its uncommitted changes on a connection.

        The default mode (`conditional_savepoint`) depends on the connection: in a savepoint of the
        connection the session makes its own savepoint, without a transaction it begins one.
        """
        session = self._session
        root = session.get_transaction()
        joined = root._connections.get(connection) if root is not None else None  # noqa: SLF001  how it was joined
        if joined is not None:
            _, _, is_committed, _ = joined
            return is_committed
        if not isinstance(connection, Connection) or not connection.in_transaction():
            return True
        if session.join_transaction_mode == "conditional_savepoint":
            return connection.in_nested_transaction()
        return session.join_transaction_mode in _FOLLOWED

    def require_control(self, connection: Engine | Connection) -> None:
        """Raise TransactionRefused where uncommitted changes of the session may stay."""
        if not self.controls(connection):
            raise TransactionRefused(_LEFT_TO_THE_CONNECTION)

    def takes_events(self, connection: Connection) -> bool:
        """Whether a connection of the session leads to the database of the events."""
        return connection.engine is self.bind.engine


def begun_connections(root: SessionTransaction | None) -> frozenset[Connection]:
    """Return the connections on which a session's outermost transaction has begun."""
    if root is None:
        return frozenset()
    if hasattr(root, "connections"):
        return root.connections
    # SQLAlchemy before 2.1.7, whose `connections` reads the same.
    return frozenset(entry[0] for entry in root._connections.values())  # noqa: SLF001


def route_of(session: Session, change: UpdateBase) -> UpdateBase:
    """Return the statement by which a custom session finds the database of a table.

    Most routers treat an UPDATE, such as `change`, as a write; some treat only an INSERT so.
    """
    if type(session).get_bind is Session.get_bind:
        return change
    if session.get_bind(clause=change) is session.get_bind(clause=select(change.table)):
        return insert(change.table)
    return change
