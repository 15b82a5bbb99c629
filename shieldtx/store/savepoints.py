"""Savepoints in a guarded session: those of user code, and one of shieldtx around its calls."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from sqlalchemy import Connection, Executable, NestedTransaction
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.sql.elements import (
    ReleaseSavepointClause,
    RollbackToSavepointClause,
    SavepointClause,
)

from shieldtx.domain.statement_watches import is_observed
from shieldtx.store.prepared_statements import PreparedStatements, ignored, in_pipeline

_FIRST_NUMBER: Final = secrets.randbelow(10**12)
"""The number of the first savepoint of each transaction: user code must not hit the name."""

_NUMBER: Final = "_Connection__savepoint_seq"
"""The attribute in which SQLAlchemy counts the savepoints of a connection, for their names."""


_BEGINS: Final[Mapping[type[Executable], str]] = {
    SavepointClause: "SAVEPOINT",
    RollbackToSavepointClause: "ROLLBACK TO SAVEPOINT",
    ReleaseSavepointClause: "RELEASE SAVEPOINT",
}
"""How the statements about savepoints begin. SQLAlchemy's names of savepoints need no quotes."""

_TAKE_SEVERAL: Final = {"psycopg", "psycopg_async", "psycopg2"}
"""Drivers that send several statements without parameters to the server in one message."""

_OPEN: Final = "shieldtx.savepoint"
"""The key of shieldtx's open savepoint in the info of its session."""


class OpenSavepoint:
    """A savepoint of shieldtx in a session, around one or several calls of user code."""

    __slots__ = ("_prepared", "connection", "of_connection", "of_session")

    def __init__(
        self,
        session: Session,
        *,
        kept: str = "",
        before: Sequence[str] = (),
        is_doubtful: bool = False,
    ) -> None:
        """Set the savepoint, after the session has written its objects.

        `kept` is the name of one to which the transaction was just rolled back: that does not end
        it, and a further one inside would use up a subtransaction. If it `is_doubtful` whether the
        savepoint will be released, psycopg prepares no statements inside. The statements `before`
        it go to the server in its message.
        """
        # Without the call, SQLAlchemy would wait for the first statement of the session; but user
        # code may have a connection of an earlier call.
        self.connection = connection = session.connection()
        used = int(kept.rpartition("_")[2]) - 1 if kept else getattr(connection, _NUMBER, 0)
        setattr(connection, _NUMBER, max(_FIRST_NUMBER, used))
        with _uncompiled(connection, kept=kept, pending=list(before)):
            self.of_session = session.begin_nested()
            session.connection()
        self.of_connection = connection.get_nested_transaction()
        self._prepared = PreparedStatements(
            connection.connection.driver_connection, pauses=is_doubtful
        )
        # A further session on the connection would see that it is in a savepoint, and leave its
        # work to a savepoint of its own, which its close() rolls back.
        connection.in_nested_transaction = self._has_inner  # type: ignore[method-assign]
        session.info[_OPEN] = self

    def release(self, session: Session) -> None:
        """Keep what was written since.

        The database raises an error if user code has ended the savepoint through its driver. Those
        that it left open inside end too: the next handler cannot return to them.
        """
        self.forget(session)
        with _uncompiled(self.connection, pending=[]):
            self.of_session.commit()

    def next(self, session: Session, *, is_doubtful: bool) -> OpenSavepoint:
        """Keep what was written since, and set the next savepoint; raises like `release`.

        Both are one message, if the driver takes several statements: half of the time.
        """
        self.forget(session)
        pending: list[str] = []
        withheld = self.name if _takes_several(self.connection) else ""
        with _uncompiled(self.connection, withheld=withheld, pending=pending):
            self.of_session.commit()
        return OpenSavepoint(session, before=pending, is_doubtful=is_doubtful)

    def roll_back(self, session: Session) -> bool:
        """Undo what was written since, with the savepoints inside; return whether that worked."""
        self.forget(session)
        connection = self.connection
        if connection.closed or connection.invalidated or not self._is_open_in(session):
            return False
        for inner in _inside(session, connection, self):
            inner.rollback()
        is_rolled_back = not self._is_on_connection
        if is_rolled_back and self.of_session.is_active:
            return False
        with _uncompiled(connection, pending=[]), self._prepared.kept():
            self.of_session.rollback()
        if is_rolled_back:
            # A flush that failed did it, and later statements may have gone past the session.
            connection.execute(RollbackToSavepointClause(self.name))  # type: ignore[no-untyped-call]
        return not session.in_nested_transaction() and not connection.in_nested_transaction()

    @property
    def is_intact(self) -> bool:
        """Whether nothing was rolled back to the savepoint, and nothing has released it.

        A flush that fails rolls back to it at once.
        """
        return self.of_session.is_active and self._is_on_connection

    @property
    def _is_on_connection(self) -> bool:
        return self.of_connection is not None and self.of_connection.is_active

    @property
    def name(self) -> str:
        """The name of the savepoint in the database."""
        return str(getattr(self.of_connection, "_savepoint", ""))

    def _has_inner(self) -> bool:
        inner = self.connection.get_nested_transaction()
        return inner is not None and inner is not self.of_connection and inner.is_active

    def forget(self, session: Session) -> None:
        """Leave nothing of it on the session and the connection."""
        session.info[_OPEN] = None
        self._prepared.resume()
        vars(self.connection).pop("in_nested_transaction", None)

    def _is_open_in(self, session: Session) -> bool:
        transaction = session.get_nested_transaction()
        while transaction is not None and transaction is not self.of_session:
            transaction = transaction.parent
        return transaction is not None


@contextmanager
def _uncompiled(
    connection: Connection,
    *,
    kept: str = "",
    withheld: str = "",
    pending: list[str],
) -> Iterator[None]:
    """Execute statements about savepoints as texts, which SQLAlchemy does not compile.

    A savepoint of the name `kept` exists already. The release of the one that is `withheld` becomes
    `pending`, until the next of these statements takes it along in its message.
    """

    def execute(statement: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(statement, SavepointClause) and statement.ident == kept:
            return None
        begin = _BEGINS.get(type(statement))
        if begin is None:
            return Connection.execute(connection, statement, *arguments, **options)
        text = f"{begin} {statement.ident}"
        if isinstance(statement, ReleaseSavepointClause) and statement.ident == withheld:
            pending.append(text)
            return None
        if isinstance(statement, RollbackToSavepointClause) and not pending:
            return _execute(connection, text)
        text = "; ".join((*pending, text))
        pending.clear()
        with ignored(connection.connection.driver_connection):
            return _execute(connection, text)

    connection.execute = execute  # type: ignore[method-assign]
    try:
        yield
    finally:
        del connection.execute


def _takes_several(connection: Connection) -> bool:
    """Whether several statements can go to the server together, and nothing observes each one."""
    return (
        connection.dialect.driver in _TAKE_SEVERAL
        and not in_pipeline(connection)
        and not is_observed(connection.get_execution_options())
    )


def _execute(connection: Connection, statement: str) -> None:
    """Execute a statement by the driver, which takes half of the time, if nothing observes it."""
    if is_observed(connection.get_execution_options()):
        connection.exec_driver_sql(statement)
        return
    with closing(connection.connection.cursor()) as cursor:
        try:
            cursor.execute(statement)
        except BaseException as error:  # noqa: BLE001  it is raised again
            # As SQLAlchemy does in two-phase commits: callers expect its own errors.
            connection._handle_dbapi_exception(error, statement, None, None, None)  # noqa: SLF001


def forget_savepoint(session: Session) -> None:
    """Forget the savepoint that an error has left open in a session, which ends."""
    left: OpenSavepoint | None = session.info.get(_OPEN)
    if left is not None:
        left.forget(session)


def release_savepoints(session: Session, connection: Connection) -> bool:
    """Release all savepoints of user code, whose outer ones would include the inner ones.

    Returns False if user code has ended shieldtx's savepoint, with all that it contains.
    """
    outside: OpenSavepoint | None = session.info.get(_OPEN)
    if outside is not None and not outside.is_intact:
        return False
    for inner in _inside(session, connection, outside):
        inner.commit()
    return True


def _inside(
    session: Session, connection: Connection, outside: OpenSavepoint | None
) -> Iterator[SessionTransaction | NestedTransaction]:
    """Yield the savepoints of user code, the innermost first; the caller ends each of them."""
    while True:
        of_session = session.get_nested_transaction()
        innermost = connection.get_nested_transaction()
        if outside is not None:
            of_session = None if of_session is outside.of_session else of_session
            innermost = None if innermost is outside.of_connection else innermost
        if of_session is not None and (innermost is None or _began(of_session, innermost)):
            yield of_session
        elif innermost is not None:
            yield innermost
        else:
            return


def _began(of_session: SessionTransaction, savepoint: NestedTransaction) -> bool:
    """Whether a savepoint is the session's; True too if the session has run no statement yet."""
    begun = of_session._connections.values()  # noqa: SLF001  no other API has the owner
    return not begun or any(transaction is savepoint for _, transaction, *_ in begun)
