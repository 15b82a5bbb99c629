"""The entry of a local transaction into a barrier: at once, or with the commit of a session."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.ports.half_messages import Barrier

_WAITING = "shieldtx.barrier_entries"
_WAITED_FOR = "shieldtx.barrier_entries_waiting"
_ENTERED = "shieldtx.barrier_entries_made"

_IN_A_SAVEPOINT = (
    "the barrier would be in a savepoint, and be gone when that alone is rolled back: "
    "guard the transaction before its first savepoint"
)


class _TransactionOutcome(Enum):
    """How a local transaction has ended, as far as its connection shows."""

    OPEN = auto()
    TRIED_TO_COMMIT = auto()
    """The barrier alone knows whether it did: COMMIT of an aborted transaction rolls back."""
    ROLLED_BACK = auto()


class BarrierEntry:
    """One local transaction that has entered a barrier, or will with its commit."""

    def __init__(self, caller: Session | Connection, event_ids: Sequence[UUID]) -> None:
        self.caller = caller
        self.event_ids = frozenset(event_ids)
        self._outcome = _TransactionOutcome.OPEN

    @property
    def is_open(self) -> bool:
        """Whether the local transaction may still commit or roll back."""
        return self._outcome is _TransactionOutcome.OPEN and self.caller.in_transaction()

    def end(self, outcome: _TransactionOutcome) -> None:
        """Note how the local transaction ended."""
        self._outcome = outcome


def enter_now(
    caller: Session | Connection, barrier: Barrier, event_ids: Sequence[UUID]
) -> BarrierEntry:
    """Enter the open transaction, which is begun where there is none.

    Raises TransactionRefused inside of a savepoint: it could be rolled back alone, and the barrier
    with it. Raises what the barrier raises.
    """
    if caller.in_nested_transaction():
        raise TransactionRefused(_IN_A_SAVEPOINT)
    entry = BarrierEntry(caller, event_ids)
    connection = caller.connection() if isinstance(caller, Session) else caller
    # A savepoint that the session knows nothing of, unless it takes part in a Connection's.
    if connection.in_nested_transaction() and not _is_shared(caller):
        raise TransactionRefused(_IN_A_SAVEPOINT)
    _enter(connection, barrier, entry)
    return entry


def enter_at_commit(session: Session, barrier: Barrier, event_ids: Sequence[UUID]) -> BarrierEntry:
    """Enter the transaction of a session that cannot reach its database here, with its commit.

    Raises TransactionRefused inside of a savepoint, when the transaction is ending, in AUTOCOMMIT,
    and for a session that shares the transaction of its connection, which may commit without it.
    """
    if _is_shared(session):
        raise TransactionRefused(
            "this AsyncSession shares the transaction of its connection, which may commit without "
            "the session: guard it at once, with `await session.run_sync(tx.guard)`"
        )
    # The row would be written with the commit of the whole, whatever became of the savepoint.
    if session.in_nested_transaction():
        raise TransactionRefused(_IN_A_SAVEPOINT)
    root = session.get_transaction()
    if root is None:
        session.begin()
    elif not root.is_active:
        raise TransactionRefused(
            "the session's transaction has ended or failed: guard it before its commit"
        )
    connections = [c for c in root.connections if _is_entered_by(c, session)] if root else []
    for connection in connections:
        if connection.in_nested_transaction():
            raise TransactionRefused(_IN_A_SAVEPOINT)
        barrier.admit(connection)
    entry = BarrierEntry(session, event_ids)
    session.info.setdefault(_WAITING, []).append((barrier, entry))
    for connection in connections:
        _await_commit_of(connection, session)
    return entry


def _is_shared(caller: Session | Connection) -> bool:
    return isinstance(caller, Session) and isinstance(caller.get_bind(), Connection)


def _is_entered_by(connection: Connection, session: Session) -> bool:
    """Whether the session will enter the barrier over the connection, among those that it has."""
    return session.get_bind().engine is connection.engine


def _await_commit_of(connection: Connection, session: Session) -> None:
    """Enter with a connection's commit too.

    It may come without the session's `before_commit`, or inside a savepoint.
    """
    connection.execution_options(**{_WAITED_FOR: session})


def _enter(connection: Connection, barrier: Barrier, entry: BarrierEntry) -> None:
    barrier.enter(connection, sorted(entry.event_ids))
    entered: list[BarrierEntry] | None = connection.get_execution_options().get(_ENTERED)
    if entered is None:
        entered = []
        connection.execution_options(**{_ENTERED: entered})
    entered.append(entry)


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    # A savepoint's release is no commit.
    if _WAITING not in session.info or session.in_nested_transaction():
        return
    _enter_waiting(session.connection(), session)


@sqlalchemy_event.listens_for(Session, "after_begin")
def _on_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    if _WAITING not in session.info or not _is_entered_by(connection, session):
        return
    # Before the first statement: in AUTOCOMMIT, what it changes would stay without its message.
    for barrier, _entry in session.info[_WAITING]:
        barrier.admit(connection)
    _await_commit_of(connection, session)


@sqlalchemy_event.listens_for(Engine, "commit")
@sqlalchemy_event.listens_for(Engine, "prepare_twophase")
def _on_connection_commit(connection: Connection, *_: Any) -> None:
    session: Session | None = connection.get_execution_options().get(_WAITED_FOR)
    if session is None:
        return
    try:
        _enter_waiting(connection, session)
    except BaseException:
        # After an error in this event, SQLAlchemy takes the transaction for ended: it would go
        # back to the pool with the connection, and its next user would commit it.
        connection.connection.rollback()
        raise


def _enter_waiting(connection: Connection, session: Session) -> None:
    for barrier, entry in session.info.pop(_WAITING, ()):
        _enter(connection, barrier, entry)


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    if ended.parent is None:
        for _, entry in session.info.pop(_WAITING, ()):
            entry.end(_TransactionOutcome.ROLLED_BACK)


@sqlalchemy_event.listens_for(Engine, "commit")
@sqlalchemy_event.listens_for(Engine, "commit_twophase")
def _on_commit(connection: Connection, *_: Any) -> None:
    _note_outcome(connection, _TransactionOutcome.TRIED_TO_COMMIT)


@sqlalchemy_event.listens_for(Engine, "rollback")
@sqlalchemy_event.listens_for(Engine, "rollback_twophase")
def _on_rollback(connection: Connection, *_: Any) -> None:
    _note_outcome(connection, _TransactionOutcome.ROLLED_BACK)


def _note_outcome(connection: Connection, outcome: _TransactionOutcome) -> None:
    entered: list[BarrierEntry] = connection.get_execution_options().get(_ENTERED, [])
    for entry in entered:
        entry.end(outcome)
    entered.clear()
