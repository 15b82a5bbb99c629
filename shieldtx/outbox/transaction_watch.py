"""Detects rollbacks without SQLAlchemy of the transaction whose events wait for the commit.

Drivers have rollbacks and blocks of their own, and SAVEPOINT may be any statement. Waiting events
would survive the rollback of their data.
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
from shieldtx.outbox.session_savepoints import enclosing
from shieldtx.ports.transaction_marks import TransactionMarks, TransactionState

_OWNERS = count(1)
_SQLALCHEMYS = "sa_savepoint_"
"""The prefix of the names of SQLAlchemy's savepoints."""
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
    """The innermost transaction and its parents: a rollback of any of them removes the mark."""


class TransactionWatch:
    """Watches the transaction of one session from its first event on.

    The driver's state is mostly sufficient, and needs no query. The server is queried where the
    driver's state is not sufficient: when a change may be undone without the session.
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
        """Whether some events were left to wait for the commit."""
        self._has_begun = False
        self._is_unmarked = False
        """Whether an event was added, or data written, since the last mark."""
        self._can_be_undone = False
        """Whether a savepoint set by a plain statement is known to be open, or was."""
        self._is_asking = False
        self._has_pending = False
        """Whether the session still had objects to write when an event was added, or when a plain
        statement set a savepoint."""
        self._lost_in: tuple[SessionTransaction, ...] | None = None
        """The transactions in which the events are known to be lost, until one of these is rolled
        back. Empty where the whole transaction is lost."""

    def on_wait(self, connection: Connection | None, *, may_ask: bool) -> None:
        """Record that events wait from now on; without `may_ask`, no query is possible.

        Without `may_ask`, raises TransactionRefused in a block of the driver, whose end is not
        observable.
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
        """Record that events were inserted before the commit.

        Any later rollback removes events that have waited, even if it does not cover the place
        where they were added. Events that were inserted when added share the fate of their data in
        a rollback to a savepoint. Only a full rollback may leave data written later.
        """
        if self._has_waited:
            self.on_wait(connection, may_ask=True)
        else:
            self._is_on = True
            self._observe(connection)

    def on_statement(self, connection: Connection, statement: str, *, at_end: bool) -> None:
        """Check the transaction before a statement; with `at_end`, the events follow at once."""
        if self._is_asking or not self._is_on:
            return
        savepoints = savepoints_in(statement)
        self._note_state(connection)
        if savepoints and self._has_savepoint(savepoints):
            # A rollback to this savepoint may undo the loss: so nothing is refused here.
            return
        if savepoints:
            self._can_be_undone = True
            self._note_pending()
        if self._has_failed(connection):
            # The transaction can only roll back, and to a savepoint from before the events: a
            # savepoint set after them would have found them marked.
            if savepoints and self._is_unmarked:
                self._lose_here()
            return
        self._refuse_lost()
        # A mark set in a driver's block that began after the events would vanish with the block.
        if (
            self._can_be_undone
            and self._is_unmarked
            and not at_end
            and not self._marks.is_in_block(connection)
        ):
            self._mark(connection)

    def _has_savepoint(self, savepoints: Sequence[str]) -> bool:
        """Whether the session's begin_nested() set them: it misses those of a connection."""
        return self._session.in_nested_transaction() and savepoints[0].startswith(_SQLALCHEMYS)

    def on_flush(self, connection: Connection | None) -> None:
        """Record that the session has written its objects, perhaps those of the events.

        From then on, the place of writing counts, not the place where the events were added. In a
        driver's block, objects from before the block cannot be distinguished.
        """
        if connection is None or not self._is_on:
            return
        has_pending, self._has_pending = self._has_pending, False
        if (has_pending and self._can_be_undone) or self._marks.is_in_block(connection):
            self._mark(connection)

    def on_failure(self, connection: Connection) -> None:
        """Record that a statement failed: it may have begun the driver's transaction."""
        if self._is_on and self._has_failed(connection):
            self._has_begun = True

    def lose(self) -> None:
        """Record that the transaction was rolled back, and that its session continues."""
        if self._is_on:
            self._lost_in = ()

    def is_over(self, connection: Connection) -> bool:
        """Whether the driver has ended a transaction in which no event waits.

        Its events were inserted when added, and had the outcome of all executed statements. Data
        that the session has still to write did not.
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
        """Record whether a statement has begun a transaction, while that is open."""
        self._observe(connection)

    def check(self, connection: Connection) -> None:
        """Raise TransactionRefused if the transaction or savepoint of the events is lost."""
        self._observe(connection)
        if self._set:
            with self._asking():
                found = self._marks.marked(connection, owner=self._owner)
            self._compare(found)

    def on_rolled_back(self, savepoint: SessionTransaction) -> None:
        """Record that the session has rolled a savepoint back, with the marks in it."""
        if savepoint in (self._lost_in or ()):
            self._lost_in = None
        kept = [mark for mark in self._set if savepoint not in mark.set_in]
        self._is_unmarked = self._is_unmarked or len(kept) < len(self._set)
        self._set = kept

    def forget(self) -> None:
        """Record that the transaction has ended or is prepared, and another one may begin."""
        # A mark that is still set in the database belongs to another transaction, or to none.
        self._owner = next(_OWNERS)
        self._set.clear()
        self._is_on = self._has_waited = self._has_begun = False
        self._is_unmarked = self._can_be_undone = False
        self._lost_in = None
        self._has_pending = False

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Skip the checks for the watch's own statements."""
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
            # Any end of the failed state undoes the events added since.
            self._lose_here()
            return
        try:
            with self._asking():
                before = self._marks.mark(connection, owner=self._owner, number=self._last + 1)
        except DBAPIError:
            if connection.invalidated:
                raise
            # The transaction has failed, which not every driver reports. The next statement fails
            # too, unless it rolls back to a savepoint.
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

    SQLAlchemy does not observe this end: a COMMIT would omit the events, and after a rollback the
    events would go into the next transaction.
    """
    if ends_transaction(statement):
        raise TransactionRefused(
            f"the statement {statement.strip()[:40]!r} would end the transaction without "
            f"{waiting} of its events: call session.commit() or session.rollback()"
        )
