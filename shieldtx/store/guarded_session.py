"""A Session for user code in a transaction that shieldtx alone may end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, CursorResult, Engine, Executable, RootTransaction, event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx._coroutines import watch_calls
from shieldtx.domain.sql import ends_transaction
from shieldtx.errors import HandlerError
from shieldtx.store.as_found import AsFound
from shieldtx.store.dialects import LOCKED_AT, OF_MARK, TRANSACTION, dialect_of
from shieldtx.store.prepared_statements import in_pipeline, refuse_pipeline
from shieldtx.store.residual_state import ResidualState, residual_state_of
from shieldtx.store.savepoints import forget_savepoint, release_savepoints

_GUARD: Final = "shieldtx.guard"
"""The key of a guard in the info of its session."""

_EFFECTS: Final = count(1)
"""Numbers the marked effects: a connection may still have the mark of an earlier effect."""


@dataclass(kw_only=True, slots=True)
class _Guard:
    """The transaction of a guarded session as it began, and the owner of the code in it."""

    owner: str
    connection: Connection
    begun: SessionTransaction
    root: RootTransaction | None
    residual_state: ResidualState = ResidualState.NOTHING
    """The longest-lasting state that the owner's statements have left."""
    effect: int | None = None
    """The number of the mark that was set after the owner's effect."""
    handled: int = 0
    """The number of owners that have finished in the transaction, one after the other."""
    has_met_temporary: bool = False
    """Whether temporary tables of earlier owners existed before an owner first left state."""
    as_found: AsFound | None = None
    """The state of the session and its connection before the owner's code."""

    @property
    def violation(self) -> HandlerError:
        return HandlerError(
            f"the {self.owner} ended the transaction that it was called with: leave commit, "
            "rollback and close to shieldtx"
        )


@contextmanager
def guarded_session(engine: Engine, owner: str) -> Iterator[tuple[Session, Connection]]:
    """Open a session in a transaction that ends with the block; errors name the `owner`."""
    with Session(engine) as session, session.begin() as begun:
        connection = session.connection()
        if engine.dialect.is_async:
            watch_calls(session, connection)
        session.info[_GUARD] = guard = _Guard(
            owner=owner,
            connection=connection,
            begun=begun,
            root=connection.get_transaction(),
        )
        try:
            yield session, connection
        finally:
            forget_savepoint(session)
            if guard.residual_state is ResidualState.IN_SESSION or in_pipeline(connection):
                _close_when_returned(connection)


@contextmanager
def commits_refused(session: Session) -> Iterator[None]:
    """Reject every COMMIT of the guarded session inside the block with a HandlerError.

    Otherwise the owner would commit earlier writes of shieldtx without the later ones. A statement
    that ends the transaction is rejected as well: SQLAlchemy would not notice the end.
    """
    guard: _Guard = session.info[_GUARD]

    def reject_commit(connection: Connection) -> None:
        # After an error in this event, SQLAlchemy may return the connection with an open
        # transaction.
        connection.connection.rollback()
        raise guard.violation

    def check_statement(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, context: Any, *_how: Any
    ) -> None:
        if context is not None and context.execution_options.get(OF_MARK):
            return
        if ends_transaction(statement):
            raise guard.violation
        if left := residual_state_of(statement, parameters):
            _find_temporary(guard)
            guard.residual_state = max(guard.residual_state, left)

    listeners = (("commit", reject_commit), ("before_cursor_execute", check_statement))
    for name, listener in listeners:
        event.listen(guard.connection, name, listener)
    guard.as_found = AsFound(session, guard.connection)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(guard.connection, name, listener)


class LockedRows(NamedTuple):
    """The rows that a guarded transaction settles at its end, locked before user code runs."""

    number: int
    locked_at: datetime | None
    """The time by the database's clock."""
    transaction: str | None
    """The id of the transaction, if the database has such ids."""


def lock_rows(
    connection: Connection, statement: Executable, parameters: Mapping[str, Any]
) -> LockedRows:
    """Lock the rows that are to be settled, with a statement of `Dialect.lock_rows`."""
    found = connection.execute(statement, parameters).all()
    if not found:
        return LockedRows(0, None, None)
    dialect_of(connection.dialect).mark_transaction(connection)
    return LockedRows(sum(row[0] for row in found), *found[0][1:])


class Settlement(NamedTuple):
    """A statement that settles a part of the locked rows, and their number."""

    statement: Executable
    parameters: Mapping[str, Any]
    number: int


def settle(
    session: Session,
    rows: LockedRows,
    statement: Executable,
    parameters: Mapping[str, Any],
    *others: Settlement,
) -> None:
    """Settle the locked rows; raises HandlerError if this is not the transaction of the lock.

    Only this check detects a COMMIT through the driver that further statements followed. Then the
    owner's writes up to the COMMIT are committed; the rows stay as they are.
    """
    check_intact(session)
    guard: _Guard = session.info[_GUARD]
    refuse_pipeline(guard.connection, guard.owner)
    if not dialect_of(guard.connection.dialect).is_marked_transaction(guard.connection):
        raise guard.violation
    has_made_temporary = False
    for each in (Settlement(statement, parameters, rows.number), *others):
        given = {LOCKED_AT: rows.locked_at, TRANSACTION: rows.transaction, **each.parameters}
        settled: CursorResult[Any] = guard.connection.execute(each.statement, given)
        if settled.rowcount != each.number:
            raise guard.violation
        has_made_temporary |= settled.returns_rows and any(settled.scalars())
    _refuse_temporary(guard, is_there=has_made_temporary)
    if has_made_temporary and guard.residual_state is not ResidualState.IN_SESSION:
        _close_if_temporary_stays(session, guard.connection)


def end_event(session: Session) -> None:
    """Prepare the session for the next owner of its transaction; nothing in it is undone.

    The owner's savepoints are released, as at a COMMIT: the next owner could roll them back. Raises
    HandlerError like `check_intact`, and also if the owner's effect was undone.
    """
    check_intact(session)
    guard: _Guard = session.info[_GUARD]
    refuse_pipeline(guard.connection, guard.owner)
    _check_effect(guard)
    if not release_savepoints(session, guard.connection):
        raise guard.violation
    if len(session.identity_map):
        session.expunge_all()
    guard.handled += 1


def undo_event(session: Session) -> bool:
    """Prepare the session for the next owner, when the last one's effect is rolled back.

    Raises HandlerError like `check_intact`. Returns whether the owner has left nothing else.
    """
    check_intact(session)
    guard: _Guard = session.info[_GUARD]
    refuse_pipeline(guard.connection, guard.owner)
    session.expunge_all()
    guard.effect = None
    return is_left_as_found(session)


def note_effect(session: Session) -> None:
    """Mark the complete effect of the owner: `end_event` raises if the effect is undone later.

    The mark is needed, because SQLAlchemy does not notice savepoints of the driver's cursors and
    blocks.
    """
    check_intact(session)
    guard: _Guard = session.info[_GUARD]
    guard.effect = next(_EFFECTS)
    dialect_of(guard.connection.dialect).mark_effect(guard.connection, guard.effect)


def _check_effect(guard: _Guard) -> None:
    if guard.effect is None:
        return
    if not dialect_of(guard.connection.dialect).has_effect(guard.connection, guard.effect):
        raise HandlerError(
            "an interceptor rolled back the savepoint in which the handler ran, or the driver's "
            "block around it, and went on: raise the error again, or call proceed() outside of it"
        )
    guard.effect = None


def is_left_as_found(session: Session) -> bool:
    """Whether the owner's code has left no state that affects the next handler."""
    guard: _Guard = session.info[_GUARD]
    is_left = guard.residual_state is not ResidualState.NOTHING
    return not is_left and guard.as_found is not None and guard.as_found.is_unchanged()


def _find_temporary(guard: _Guard) -> None:
    """Search hidden temporary tables of earlier owners, before an owner first leaves state.

    Later, such tables could not be distinguished from the owner's own tables.
    """
    if not guard.handled or guard.residual_state is not ResidualState.NOTHING:
        return
    dialect = dialect_of(guard.connection.dialect)
    if not dialect.is_aborted(guard.connection):
        guard.has_met_temporary = dialect.has_made_temporary(guard.connection)


def _refuse_temporary(guard: _Guard, *, is_there: bool) -> None:
    """Raise HandlerError for temporary tables that no statement of the owners reveals.

    Functions of the database or the driver made them, and all later owners of the transaction could
    access them.
    """
    has_shown = guard.residual_state is not ResidualState.NOTHING
    if guard.has_met_temporary or (is_there and guard.handled > 1 and not has_shown):
        raise HandlerError(
            f"a {guard.owner} has made a temporary table by a function of the database or by the "
            "driver, which the next event would have met. Declare it with alone=True"
        )


def _close_if_temporary_stays(session: Session, connection: Connection) -> None:
    """Close the connection later, if temporary tables still exist after the COMMIT."""

    def check(_: Session) -> None:
        try:
            stays = dialect_of(connection.dialect).keeps_temporary(connection)
        except Exception:  # noqa: BLE001  all is committed, and the pool can replace a connection
            stays = True
        if stays:
            _close_when_returned(connection)

    event.listen(session, "after_commit", check, insert=True)


def _close_when_returned(connection: Connection) -> None:
    """Close the connection when it is returned; the next transaction gets a new connection."""
    has_server = dialect_of(connection.dialect).has_server
    if has_server and not (connection.closed or connection.invalidated):
        connection.detach()


def check_intact(session: Session) -> None:
    """Raise HandlerError when the owner has ended or broken the guarded session's transaction.

    A COMMIT would then succeed without the writes of shieldtx.
    """
    guard: _Guard = session.info[_GUARD]
    begun, connection = guard.begun, guard.connection
    if session.get_transaction() is not begun or not begun.is_active:
        raise guard.violation
    root = connection.get_transaction()
    if root is not guard.root or root is None or not root.is_active:
        raise guard.violation
    dialect = dialect_of(connection.dialect)
    if dialect.has_ended(connection):  # through the driver, without SQLAlchemy
        raise guard.violation
    if dialect.is_aborted(connection):
        raise HandlerError(
            f"the {guard.owner} went on after an error of the database, which had ended its "
            "transaction: let the error out, or try the statement in session.begin_nested()"
        )
