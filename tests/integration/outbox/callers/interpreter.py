"""The interpreter: runs a case from its first step to the last; its book has the legal outcomes."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.outbox.callers.book import Book, Fate
from tests.integration.outbox.callers.caller import Caller
from tests.integration.outbox.callers.cases import Case, End, Mode, Owner, Step
from tests.integration.outbox.callers.databases import FAILS_LATE, Databases
from tests.integration.outbox.callers.steps import Steps


class Interpreter:
    """Runs one case."""

    def __init__(self, case: Case, databases: Databases) -> None:
        self._case = case
        self._book = Book()
        self._databases = databases
        self._caller = Caller(case, databases)
        self._steps = Steps(self._caller, self._book, databases.numbers)

    def run(self) -> Book:
        """Take all steps up to the first error, end the case, and return its book."""
        self._attempt(self._work)
        self._drop_objects()
        self._take_over()
        self._attempt(self._caller.close_session)
        if self._case.mode.is_shared:
            # Some ways to join leave executed, uncommitted rows to the connection.
            self._book.close(Fate.EITHER)
            self._attempt(self._end_connection)
        self._attempt(self._caller.close_connection)
        is_open = self._book.errors or self._case.mode.is_shared
        self._book.end(Fate.EITHER if is_open else Fate.GONE)
        self._databases.resolve_prepared(self._case, [pair.number for pair in self._book.pairs])
        self._databases.discard_broken(self._case)
        return self._book

    def _drop_objects(self) -> None:
        """Record the objects that are lost when the session is closed, while their events stay.

        Such a session leaves executed statements to its connection, and drops unflushed objects. An
        event is executed at once: here, before the object existed.
        """
        leaves = self._case.mode in {Mode.CONDITIONAL_SAVEPOINT, Mode.ROLLBACK_ONLY}
        if leaves and self._steps.objects_after_events:
            new = {each.id for each in self._caller.sync_session.new}
            for pair in self._steps.objects_after_events:
                pair.row_is_dropped = pair.number in new

    def _take_over(self) -> None:
        """Record that a session in full control rolls back its whole connection when it is closed.

        In a savepoint, its commit released only the savepoint; its next transaction is the
        connection's.
        """
        if self._case.mode is Mode.CONTROL_FULLY and self._caller.has_begun:
            self._book.end(Fate.EITHER)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (AssertionError, AttributeError, LookupError, NameError, TypeError):
            # The case itself is wrong.
            raise
        except Exception as error:  # noqa: BLE001  any error is an outcome of the case
            self._book.errors.append(error)
            self._book.end(Fate.EITHER)

    def _work(self) -> None:
        self._caller.open()
        self._steps.listen()
        for step in self._case.steps:
            self._steps.take(step)
        self._end()

    def _end(self) -> None:
        end, caller = self._case.end, self._caller
        is_alone = self._case.mode.is_shared and self._case.owner is Owner.COMMITS_ALONE
        if end is End.ROLLBACK:
            self._steps.rollback()
            return
        if end is End.EXCEPTION:
            return
        if end is End.UNDONE:
            for step in (Step.BEGIN, Step.OBJECT_EVENT, Step.ROW_EVENT, Step.UNDO):
                self._steps.take(step)
        elif end is End.SWALLOWED:
            self._steps.take(Step.SWALLOW)
        elif end is End.FAILED_COMMIT:
            caller.execute(FAILS_LATE, other=self._case.mode.has_two_databases)
        elif end in {End.CUT, End.CUT_OTHER}:
            caller.cut(other=end is End.CUT_OTHER and self._case.mode.has_two_databases)
        if is_alone:
            self._commit_without_session()
            return
        self._steps.commit()
        if end is End.ADD_AFTER:
            self._steps.take(Step.ROW_EVENT)

    def _commit_connection(self) -> None:
        self._caller.wait(self._caller.connection.commit())
        self._book.end(Fate.KEPT)

    def _commit_without_session(self) -> None:
        """Commit the connection under its open session.

        A session that has not begun on the connection may have written neither data nor events
        there.
        """
        if not self._caller.has_begun:
            self._book.close(Fate.EITHER)
        self._commit_connection()

    def _end_connection(self) -> None:
        """End the transaction of a shared connection, as its owner does."""
        if self._case.owner is Owner.ROLLS_BACK:
            self._caller.wait(self._caller.connection.rollback())
            self._book.end(Fate.EITHER)
        elif self._case.owner is Owner.COMMITS:
            self._commit_connection()
