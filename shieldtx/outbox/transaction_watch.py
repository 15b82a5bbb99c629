"""Notices that the transaction of events which wait was rolled back without SQLAlchemy.

Drivers have a rollback and blocks of their own, and SAVEPOINT is a statement as any other. Events
that wait for the commit would survive what undoes their data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.domain.sql import ends_transaction, savepoints_in
from shieldtx.errors import TransactionRefused
from shieldtx.ports.transaction_marks import TransactionMarks, TransactionState

_OWNERS = count(1)
_SQLALCHEMYS = "sa_savepoint_"
"""How the names of its savepoints begin."""
_GONE = (
    "the transaction that the events were added in has ended without the session, or a part of it "
    "has been rolled back: by the driver's connection, by one of its blocks, or to a savepoint "
    "that is a statement of its own. What the session still has to write is not committed: roll it "
    "back, and use session.commit(), rollback() and begin_nested(), which take the events along"
)
_UNHEARD = (
    "the events would be added in a block of the driver's connection, whose outcome an "
    "AsyncSession does not observe: begin it with session.begin_nested()"
)


class _Mark(NamedTuple):
    number: int
    set_in: tuple[SessionTransaction, ...]
    """The innermost transaction and those around it: when one is rolled back, the mark is gone."""


class TransactionWatch:
    """Watches the transaction of one session from its first event on.

    Mostly by what the driver knows, for nothing. The server is asked where that does not tell: when
    something that can be undone without the session is in sight.
    """

    def __init__(self, session: Session, marks: TransactionMarks) -> None:
        self._session = session
        self._marks = marks
        self._owner = next(_OWNERS)
        self._set: list[_Mark] = []
        self._last = 0
        self._is_on = False
        """Whether there are events."""
        self._has_waited = False
        """Whether some of them were left to wait for the commit."""
        self._has_begun = False
        self._is_unmarked = False
        """Whether something was added, or written, since the last mark."""
        self._can_be_undone = False
        """Whether a savepoint that is a statement of its own is known to be open, or was."""
        self._is_asking = False
        self._has_pending = False
        """Whether the session had objects to write yet when an event was added, or a savepoint was
        set that is a statement of its own."""
        self._lost_in: tuple[SessionTransaction, ...] | None = None
        """In what the events are known to be gone; that stays so until one of these is rolled back.
        Nothing is in here where the whole transaction is gone."""

    def on_wait(self, connection: Connection | None, *, may_ask: bool) -> None:
        """Know that events wait from now on; without `may_ask`, where no answer can come.

        Raises TransactionRefused there for a block of the driver's: nobody would hear of its end.
        """
        self._is_on = self._has_waited = self._is_unmarked = True
        self._note_pending()
        if connection is None:
            return
        self._observe(connection)
        if self._marks.is_in_block(connection):
            if not may_ask:
                raise TransactionRefused(_UNHEARD)
            self._mark(connection)

    def on_inserted(self, connection: Connection) -> None:
        """Know that events were inserted before the commit.

        Those that have waited are gone with what is rolled back from now on, though it is not what
        they were added in. Of those that were inserted when they were added, a rollback to a
        savepoint takes both back; only one of everything may leave what follows.
        """
        if self._has_waited:
            self.on_wait(connection, may_ask=True)
        else:
            self._is_on = True
            self._observe(connection)

    def on_statement(self, connection: Connection, statement: str, *, at_end: bool) -> None:
        """Look before a statement is run; with `at_end`, the events follow at once."""
        if self._is_asking or not self._is_on:
            return
        savepoints = savepoints_in(statement)
        self._note_state(connection)
        if savepoints and self._hears_of(savepoints):
            # Its rollback may take along what is lost: nothing is refused here.
            return
        if savepoints:
            self._can_be_undone = True
            self._note_pending()
        if self._has_failed(connection):
            # It can only roll back, and to a savepoint from before the events: one that was set
            # behind them would have found them marked.
            if savepoints and self._is_unmarked:
                self._lose_here()
            return
        self._refuse_lost()
        # In a block of the driver's that began behind the events, a mark would be gone with that.
        if (
            self._can_be_undone
            and self._is_unmarked
            and not at_end
            and not self._marks.is_in_block(connection)
        ):
            self._mark(connection)

    def _hears_of(self, savepoints: Sequence[str]) -> bool:
        """Whether they are of the session's begin_nested(): a connection's own tells it nothing."""
        return self._session.in_nested_transaction() and savepoints[0].startswith(_SQLALCHEMYS)

    def on_flush(self, connection: Connection | None) -> None:
        """Know that the session has written its objects, those of the events perhaps.

        Where they are written counts then, not where the events were added. Of a block of the
        driver's nobody knows which of them are from before it.
        """
        if connection is None or not self._is_on:
            return
        has_pending, self._has_pending = self._has_pending, False
        if (has_pending and self._can_be_undone) or self._marks.is_in_block(connection):
            self._mark(connection)

    def on_failure(self, connection: Connection) -> None:
        """Know that a statement failed: it may have begun the driver's transaction."""
        if self._is_on and self._has_failed(connection):
            self._has_begun = True

    def lose(self) -> None:
        """Know that the transaction was rolled back, and that its session goes on."""
        if self._is_on:
            self._lost_in = ()

    def is_over(self, connection: Connection) -> bool:
        """Whether the driver has ended a transaction in which no event waits.

        They were inserted when they were added, and have shared the fate of all that was executed;
        but not that of data which the session has to write yet.
        """
        is_inserted = self._has_begun and not self._has_waited
        return (
            is_inserted
            and self._marks.state(connection) is TransactionState.NONE
            and self._session._is_clean()  # noqa: SLF001  a flush would do nothing
        )

    @property
    def waits_for_beginning(self) -> bool:
        """Whether the next statement may begin the driver's transaction."""
        return self._is_on and not self._has_begun

    def on_statement_end(self, connection: Connection) -> None:
        """Know whether a statement has begun a transaction, where that `waits_for_beginning`."""
        self._observe(connection)

    def check(self, connection: Connection) -> None:
        """Raise TransactionRefused if what the events were added in is gone."""
        self._observe(connection)
        if self._set:
            with self._asking():
                found = self._marks.marked(connection, owner=self._owner)
            self._compare(found)

    def on_rolled_back(self, savepoint: SessionTransaction) -> None:
        """Know that the session has rolled a savepoint back, and the marks in it."""
        if savepoint in (self._lost_in or ()):
            self._lost_in = None
        kept = [mark for mark in self._set if savepoint not in mark.set_in]
        self._is_unmarked = self._is_unmarked or len(kept) < len(self._set)
        self._set = kept

    def forget(self) -> None:
        """Know that the transaction has ended or is prepared, and another one may begin."""
        # What is still marked in the database is another transaction's, or nobody's.
        self._owner = next(_OWNERS)
        self._set.clear()
        self._is_on = self._has_waited = self._has_begun = False
        self._is_unmarked = self._can_be_undone = False
        self._lost_in = None
        self._has_pending = False

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Have statements pass that are the watch's own."""
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking = False

    def _note_pending(self) -> None:
        is_clean = self._session._is_clean()  # noqa: SLF001  a flush would do nothing
        self._has_pending = self._has_pending or not is_clean

    def _has_failed(self, connection: Connection) -> bool:
        return self._marks.state(connection) is TransactionState.FAILED

    def _observe(self, connection: Connection) -> None:
        self._note_state(connection)
        self._refuse_lost()

    def _refuse_lost(self) -> None:
        if self._lost_in is not None:
            raise TransactionRefused(_GONE)

    def _lose_here(self) -> None:
        if self._lost_in is None:
            self._lost_in = tuple(enclosing(self._session))

    def _note_state(self, connection: Connection) -> None:
        state = self._marks.state(connection)
        is_over = state is TransactionState.NONE and self._has_begun
        if is_over or state is TransactionState.ENDED:
            self._lost_in = ()
        elif state in {TransactionState.OPEN, TransactionState.FAILED}:
            self._has_begun = True

    def _mark(self, connection: Connection) -> None:
        if self._has_failed(connection):
            # Whatever ends that undoes the events, added since.
            self._lose_here()
            return
        try:
            with self._asking():
                before = self._marks.mark(connection, owner=self._owner, number=self._last + 1)
        except DBAPIError:
            if connection.invalidated:
                raise
            # A transaction that has failed, of which not every driver knows: what follows says so,
            # unless it rolls back to a savepoint.
            self._lose_here()
            return
        if before is None:
            return
        self._compare(before)
        self._last += 1
        self._set.append(_Mark(self._last, tuple(enclosing(self._session))))
        self._is_unmarked = False

    def _compare(self, found: int) -> None:
        if found != (self._set[-1].number if self._set else 0):
            raise TransactionRefused(_GONE)


def refuse_end(statement: str, *, waiting: int) -> None:
    """Raise TransactionRefused for a statement that ends the transaction while events wait for it.

    SQLAlchemy would not know of the end: a COMMIT would leave the events behind, and those of a
    transaction that was rolled back would go into the next one.
    """
    if ends_transaction(statement):
        raise TransactionRefused(
            f"the statement {statement.strip()[:40]!r} would end the transaction without "
            f"{waiting} of its events: call session.commit() or session.rollback()"
        )


def enclosing(session: Session) -> Iterator[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent
