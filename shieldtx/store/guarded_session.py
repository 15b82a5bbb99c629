"""A session lent to a user's function, whose transaction only shieldtx may end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, CursorResult, Engine, Executable, RootTransaction, event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.domain.sql import ends_transaction
from shieldtx.errors import HandlerError
from shieldtx.store.dialects import SINCE, TRANSACTION, dialect_of

_LOAN = "shieldtx.loan"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Loan:
    """What is lent, and to whom."""

    borrower: str
    connection: Connection
    begun: SessionTransaction
    root: RootTransaction | None

    @property
    def ended(self) -> HandlerError:
        return HandlerError(
            f"the {self.borrower} ended the transaction that it was called with: leave commit, "
            "rollback and close to shieldtx"
        )


@contextmanager
def lend(engine: Engine, borrower: str) -> Iterator[tuple[Session, Connection]]:
    """Open a session in a transaction that ends with the block; messages name the `borrower`."""
    with Session(engine) as session, session.begin() as begun:
        connection = session.connection()
        session.info[_LOAN] = _Loan(
            borrower=borrower,
            connection=connection,
            begun=begun,
            root=connection.get_transaction(),
        )
        yield session, connection


@contextmanager
def commits_refused(session: Session) -> Iterator[None]:
    """Answer every COMMIT of the lent session inside the block with a HandlerError.

    What shieldtx has written in the transaction, to be committed with the end of it all, would be
    committed without. A statement that ends the transaction is refused as well: SQLAlchemy would
    not know that it has ended.
    """
    loan: _Loan = session.info[_LOAN]

    def refuse(connection: Connection) -> None:
        # After an error in this event, SQLAlchemy may return the connection with its transaction
        # open.
        connection.connection.rollback()
        raise loan.ended

    def refuse_in_words(_connection: Any, _cursor: Any, statement: str, *_how: Any) -> None:
        if ends_transaction(statement):
            raise loan.ended

    listeners = (("commit", refuse), ("before_cursor_execute", refuse_in_words))
    for name, listener in listeners:
        event.listen(loan.connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(loan.connection, name, listener)


class Held(NamedTuple):
    """The rows that a lent transaction settles at its end, locked before it is lent."""

    rows: int
    since: datetime | None
    """The database's time of the lock."""
    transaction: str | None
    """The id of the transaction, where the database has one."""


def hold(connection: Connection, statement: Executable, parameters: Mapping[str, Any]) -> Held:
    """Lock the rows that are to be settled, by a statement of the dialect's `held`."""
    found = connection.execute(statement, parameters).all()
    if not found:
        return Held(0, None, None)
    dialect_of(connection.dialect).begin_loan(connection)
    return Held(sum(row[0] for row in found), *found[0][1:])


def settle(
    session: Session, held: Held, statement: Executable, parameters: Mapping[str, Any]
) -> None:
    """Settle the held rows; raises HandlerError where the transaction is not that of the lock.

    A COMMIT by way of the driver, with further statements after it, is not noticed before. The
    borrower's writes until then are committed; the rows stay as they are.
    """
    check_intact(session)
    loan: _Loan = session.info[_LOAN]
    if not dialect_of(loan.connection.dialect).end_loan(loan.connection):
        raise loan.ended
    given = {SINCE: held.since, TRANSACTION: held.transaction, **parameters}
    settled: CursorResult[Any] = loan.connection.execute(statement, given)
    if settled.rowcount != held.rows:
        raise loan.ended


def check_intact(session: Session) -> None:
    """Raise HandlerError when the borrower has ended the lent session's transaction or spoilt it.

    A COMMIT would then write nothing, or not what shieldtx wrote, and say nothing of it.
    """
    loan: _Loan = session.info[_LOAN]
    begun, connection = loan.begun, loan.connection
    if session.get_transaction() is not begun or not begun.is_active:
        raise loan.ended
    root = connection.get_transaction()
    if root is not loan.root or root is None or not root.is_active:
        raise loan.ended
    dialect = dialect_of(connection.dialect)
    if dialect.has_ended(connection):
        # By way of the driver, past SQLAlchemy.
        raise loan.ended
    if dialect.is_aborted(connection):
        raise HandlerError(
            f"the {loan.borrower} went on after an error of the database, which had ended its "
            "transaction: let the error out, or try the statement in session.begin_nested()"
        )
