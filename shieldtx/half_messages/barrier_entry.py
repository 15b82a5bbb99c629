"""The entry of a local transaction into a barrier: at once, or when its session connects."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import chain
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from shieldtx.domain.sql import ends_transaction
from shieldtx.domain.statement_watches import BARRIER_ENTRIES
from shieldtx.errors import TransactionRefused
from shieldtx.half_messages.barrier_binding import (
    connection_to,
    connections_of,
    leads_to,
    refuse_written,
    savepoints_of,
    shares_its_transaction,
)
from shieldtx.ports.half_messages import Barrier

_IN_A_SAVEPOINT = (
    "the barrier would be in a savepoint, and be gone when that alone is rolled back: "
    "guard the transaction before its first savepoint"
)
_SHARES = (
    "this AsyncSession shares the transaction of its connection, which may commit without "
    "the session: guard it at once, with `await session.run_sync(tx.guard)`"
)
_ENDED = "the session's transaction has ended or failed: guard it before its commit"
_REFUSED = (
    "this transaction could not be guarded, and the error of that was swallowed: it cannot be "
    "committed, since the commit could not be verified. Roll it back, and let the error out"
)
_GONE = (
    "the barrier is not in this transaction any more: the driver's connection, a block of it or a "
    "ROLLBACK TO has ended it, or a part of it. It is not committed, since the commit could not be "
    "verified: use session.commit(), rollback() and begin_nested()"
)


class _State(Enum):
    """The progress of a local transaction, as its connection shows."""

    NEW = auto()
    WAITING = auto()
    """Waits until its session begins on its connection, or commits: then it enters."""
    ENTERED = auto()
    PREPARED = auto()
    """Prepared by the first of two phases."""
    REFUSED = auto()
    """The transaction could not enter, and cannot be committed."""
    ENDED = auto()
    """Only the barrier knows the outcome: COMMIT of an aborted transaction rolls back."""


class BarrierEntry:
    """One local transaction that enters a barrier: at once, or when its session connects.

    A transaction that could not enter may not commit, even if its error was swallowed. Otherwise
    its commit could not be verified, or PostgreSQL would silently roll an aborted transaction back.
    """

    def __init__(
        self,
        caller: Session | Connection,
        barrier: Barrier,
        event_ids: Sequence[UUID],
        *,
        with_commit: bool,
    ) -> None:
        """For a session that cannot query its database here, enter `with_commit`."""
        self.caller = caller
        self._barrier = barrier
        self._event_ids = frozenset(event_ids)
        self._with_commit = with_commit
        self._state = _State.NEW
        self._connection: Connection | None = None
        """The connection over which it has entered."""
        self._inside: tuple[object, ...] = ()
        """The savepoints in which it was refused, or which its session has joined and entered
        in."""

    @property
    def is_open(self) -> bool:
        """Whether the local transaction may still commit or roll back."""
        may_end = self._state in {_State.WAITING, _State.ENTERED, _State.PREPARED}
        # A lost connection, or another listener's error, can end it without an event.
        return may_end and self.caller.in_transaction()

    @property
    def is_waiting(self) -> bool:
        """Whether the transaction has still to enter."""
        return self._state is _State.WAITING

    def enter(self) -> None:
        """Enter the open transaction; a session without a transaction begins one.

        Raises TransactionRefused inside a savepoint: a rollback to the savepoint would also undo
        the barrier. With the commit, also raises it when the transaction is ending, and in
        AUTOCOMMIT. The same applies to a session that shares its connection's transaction, which
        may commit without the session. Errors of the barrier are raised.
        """
        if isinstance(self.caller, Session):
            if not self.caller.in_transaction():
                self.caller.begin()
            self.caller.info.setdefault(BARRIER_ENTRIES, []).append(self)
        try:
            if self._with_commit:
                self._wait_for_commit()
            else:
                self._enter_at_once()
            for earlier in entries_of(self.caller):
                earlier.give_way_to(self)
        except BaseException:
            self._state = _State.REFUSED
            raise
        finally:
            for connection in connections_of(self.caller):
                self._register(connection)

    def _enter_at_once(self) -> None:
        caller, barrier = self.caller, self._barrier
        self._check_savepoint(caller)
        connection = connection_to(barrier, caller)
        # Refuse an unobserved savepoint, unless the session takes part in a Connection's
        # transaction.
        if not shares_its_transaction(caller, barrier):
            self._check_savepoint(connection)
        self._enter_over(connection)

    def _wait_for_commit(self) -> None:
        if shares_its_transaction(self.caller, self._barrier):
            raise TransactionRefused(_SHARES)
        # The row would be written with the final commit, whatever the outcome of the savepoint.
        self._check_savepoint(self.caller)
        root = self.caller.get_transaction()
        if root is None or not root.is_active:
            raise TransactionRefused(_ENDED)
        for connection in connections_of(self.caller):
            if self._leads_over(connection):
                self._check_savepoint(connection)
                self._barrier.admit(connection)
        self._state = _State.WAITING

    def _check_savepoint(self, transaction: Session | Connection) -> None:
        if transaction.in_nested_transaction():
            self._inside = savepoints_of(transaction)
            raise TransactionRefused(_IN_A_SAVEPOINT)

    def on_savepoint_rolled_back(self, savepoint: object) -> None:
        """Permit the commit of the rest: the rollback has undone everything that was guarded."""
        if self._state in {_State.REFUSED, _State.ENTERED} and savepoint in self._inside:
            self._state, self._connection = _State.ENDED, None

    def _leads_over(self, connection: Connection) -> bool:
        session = self.caller
        return isinstance(session, Session) and leads_to(self._barrier, session, connection)

    def _enter_over(self, connection: Connection) -> None:
        try:
            self._barrier.enter(connection, sorted(self._event_ids))
        except BaseException:
            self._state = _State.REFUSED
            raise
        self._state, self._connection = _State.ENTERED, connection
        self._inside = savepoints_of(connection)

    def give_way_to(self, later: BarrierEntry) -> None:
        """Permit the commit of a refused transaction that a later entry guards."""
        if self._state is _State.REFUSED and self._event_ids <= later._event_ids:
            self._state = _State.ENDED

    def _register(self, connection: Connection) -> None:
        """Observe a connection's commit.

        The commit may come without the session's `before_commit`, or inside a savepoint.
        """
        entries = entries_on(connection)
        if not entries:
            connection.execution_options(**{BARRIER_ENTRIES: entries})
        if self not in entries:
            entries.append(self)

    def on_begin(self, connection: Connection) -> None:
        """Observe one more connection of the session, before its first statement."""
        self._register(connection)
        if self.is_waiting and self._leads_over(connection):
            # Before any change: in AUTOCOMMIT, a change would stay without its message. After a
            # rollback that the session does not observe, the message would stay without the change.
            self._enter_over(connection)

    def before_session_commit(self, session: Session) -> None:
        """Enter if deferred to the commit; raise TransactionRefused if the commit is not allowed.

        The session is the caller, or the session of a connection that was guarded by itself.
        """
        self._check_refused()
        if self.is_waiting:
            connection = connection_to(self._barrier, self.caller)
            # The connection enters when it begins, unless the session had begun on it before the
            # guard.
            if self.is_waiting:
                self._enter_over(connection)
        self._check_others(self.caller if isinstance(self.caller, Session) else session)

    def before_connection_commit(self, connection: Connection) -> None:
        """Do the same when a connection commits, by itself or as part of its session."""
        self._check_refused()
        if self.is_waiting and self._leads_over(connection):
            self._enter_over(connection)
        elif self._has_lost(connection):
            raise TransactionRefused(_GONE)
        if isinstance(self.caller, Session):
            self._check_others(self.caller)

    def _has_lost(self, connection: Connection) -> bool:
        # The server is queried: the driver's state is not sufficient after later statements.
        there = self._barrier.has_entered
        return connection is self._connection and not there(connection, self._event_ids)

    def on_prepare(self, connection: Connection) -> None:
        """Record that the transaction is about to be prepared, perhaps by a plain statement."""
        if connection is self._connection:
            self._state = _State.PREPARED

    def on_statement(self, connection: Connection, statement: str) -> None:
        """Refuse a statement that ends the transaction: its commit would not be observed."""
        may_commit = self._state in {_State.WAITING, _State.ENTERED, _State.REFUSED}
        # Any connection of the session, as long as the entering one is not known.
        if may_commit and self._connection in {None, connection} and ends_transaction(statement):
            raise TransactionRefused(
                f"the statement {statement.strip()[:40]!r} would end a guarded transaction: call "
                "commit() or rollback() of its session or connection"
            )

    def _check_refused(self) -> None:
        if self._state is _State.REFUSED:
            raise TransactionRefused(_REFUSED)

    def _check_others(self, session: Session) -> None:
        # Two phases commit all of them, or none.
        if session.twophase or not self.is_open:
            return
        others = [c for c in connections_of(session) if not self._is_over(c)]
        refuse_written(
            self._barrier,
            [connection for connection in others if connection.in_transaction()],
            own_database_only=isinstance(self.caller, Connection),
        )

    def _is_over(self, connection: Connection) -> bool:
        """Whether a connection is the one that has entered, or will."""
        if self._connection is not None:
            return connection is self._connection
        return self._leads_over(connection)

    def on_connection_end(self, connection: Connection) -> None:
        """Record that a connection has tried to commit, or has rolled back."""
        if connection is self._connection:
            self._state = _State.ENDED

    def on_session_end(self) -> None:
        """Record that the session's transaction has ended; a waiting entry can no longer enter."""
        if self.is_waiting:
            self._state = _State.ENDED


def entries_on(connection: Connection) -> list[BarrierEntry]:
    """Return the entries that a connection's commit concerns; a new list where there are none."""
    entries: list[BarrierEntry] = connection.get_execution_options().get(BARRIER_ENTRIES, [])
    return entries


def entries_in(session: Session) -> list[BarrierEntry]:
    """Return the entries of a session that has called `guard`; usually there are none."""
    entries: list[BarrierEntry] = session.info.get(BARRIER_ENTRIES, [])
    return entries


def forget_entries_in(session: Session) -> None:
    """Begin a session's next transaction without the entries of the last one."""
    for entry in session.info.pop(BARRIER_ENTRIES, ()):
        entry.on_session_end()


def entries_of(caller: Session | Connection) -> list[BarrierEntry]:
    """Return the entries of a transaction, including those of its connections."""
    own = entries_in(caller) if isinstance(caller, Session) else []
    of_connections = chain.from_iterable(map(entries_on, connections_of(caller)))
    return list(dict.fromkeys([*own, *of_connections]))
