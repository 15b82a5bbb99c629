"""A session lent to a user's function, whose transaction only shieldtx may end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import HandlerError
from shieldtx.store.dialects import dialect_of

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
    committed without.
    """
    loan: _Loan = session.info[_LOAN]

    def refuse(connection: Connection) -> None:
        # After an error in this event, SQLAlchemy may return the connection with its transaction
        # open.
        connection.connection.rollback()
        raise loan.ended

    event.listen(loan.connection, "commit", refuse)
    try:
        yield
    finally:
        event.remove(loan.connection, "commit", refuse)


def check_intact(session: Session) -> None:
    """Raise HandlerError when the borrower has ended the lent session's transaction or spoilt it.

    A COMMIT would then write nothing, or not what shieldtx wrote, and say nothing of it.
    """
    loan: _Loan = session.info[_LOAN]
    begun, connection = loan.begun, loan.connection
    if session.get_transaction() is not begun or not begun.is_active:
        raise loan.ended
    if connection.get_transaction() is not loan.root:
        raise loan.ended
    if dialect_of(connection.dialect).is_aborted(connection):
        raise HandlerError(
            f"the {loan.borrower} went on after an error of the database, which had ended its "
            "transaction: let the error out, or try the statement in session.begin_nested()"
        )
