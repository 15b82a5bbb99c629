"""The events of a session that wait for its commit, in step with its savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.outbox.connection_buffers import hear_of
from shieldtx.outbox.entries import Entry
from shieldtx.outbox.session_binding import SessionBinding
from shieldtx.outbox.several_commits import refuse_several_commits
from shieldtx.outbox.transaction_watch import TransactionWatch, enclosing, refuse_end
from shieldtx.ports.outbox import OutboxWriter, Posting


class SessionBuffer:
    """Holds the events of one session until its transaction commits, and inserts them together.

    At the last moment: by then the transaction holds the locks of all its business rows, so that
    concurrent writers of a key get their sequence numbers in the order of their changes.
    """

    def __init__(
        self,
        session: Session,
        writer: OutboxWriter,
        after_commit: Callable[[], None],
        before_insert: Callable[[Connection], None],
    ) -> None:
        self._session = session
        self._writer = writer
        self.binding = SessionBinding(session, writer)
        self._watch = TransactionWatch(session, writer.marks)
        self._after_commit = after_commit
        self._before_insert = before_insert
        self._entries: list[Entry] = []
        self._at_once = False
        self._wakes = False
        self._examines_next = False
        """Whether the connection of the events is examined when the session begins on it."""
        self._must_control = False
        """Whether the events are lost where the session leaves the commit to its connection."""
        self._is_awaited = False
        """Whether the latest events were added where the database cannot be reached."""
        self._is_ending = False
        """Whether the session is about to commit, the events with it."""
        self._committed = False
        self._released: SessionTransaction | None = None

    def admit(self, *, asynchronous: bool, lazily: bool = False) -> None:
        """Make sure that events can go into the session's transaction, or raise TransactionRefused.

        Begins the transaction where the session does so by itself. On an `asynchronous` session,
        which cannot reach its database here, what is not known yet is examined later, but before
        its first statement. So it is on any session with `lazily`: its caller has still to choose
        how the session connects.
        """
        session = self._session
        innermost = next(enclosing(session), None)
        if innermost is not None and not innermost.is_active:
            raise TransactionRefused(
                "the session's transaction has ended or failed, so an event has none to go into: "
                "add events before the commit, and roll the session back after an error"
            )
        if not session.in_transaction():
            if not session.autobegin:
                raise TransactionRefused(
                    "the session has no transaction and does not begin one by itself: "
                    "call session.begin() before adding events"
                )
            session.begin()
        # After a commit that failed, the session may have gone on.
        self._is_ending = False
        self._is_awaited = asynchronous
        is_shared = self.binding.is_shared
        self._must_control = asynchronous and is_shared
        if self._must_control:
            self.binding.require_control(self.binding.bind)
        # A session on a caller's Connection may never be committed itself: nothing may wait in it.
        self._at_once = is_shared and not asynchronous
        if asynchronous or lazily:
            self._examines_next = True
            for connection in self.binding.connections:
                self._examine(connection)
        else:
            self._examine(self.binding.connection())

    def add(self, postings: Iterable[Posting]) -> None:
        """Take postings in; an admitted transaction is open."""
        if self._at_once:
            # Now: later, these would be forgotten with them.
            self._forget_if_over(self.binding.connection())
        else:
            self._watch.on_wait(self.binding.begun_connection, may_ask=not self._is_awaited)
        inside = tuple(enclosing(self._session))
        self._entries += [Entry(posting=p, added_in=inside) for p in postings]
        # Whoever commits, of each database: the session, the connection by itself; and events may
        # still come after `before_commit`, from the flush of the commit itself.
        for connection in self.binding.connections:
            hear_of(connection, self)
        if self._at_once:
            self._flush_data()
            self.flush()

    def _flush_data(self) -> None:
        """Write the session's data before its events, so that whatever undoes it undoes both.

        Closed, a session may leave to its connection what it has executed, and drop the rest. Where
        it drops both, objects from before a block of the driver's are not written in that.
        """
        session, binding = self._session, self.binding
        if session._flushing:  # noqa: SLF001  no flush in a flush
            return
        is_in_block = self._writer.marks.is_in_block(binding.connection())
        if not (is_in_block and binding.controls(binding.bind)):
            session.flush()

    def wake(self) -> None:
        """Let the relay know of the commit, also if no event comes with it."""
        self._wakes = True

    def flush(self, connection: Connection | None = None) -> None:
        """Insert what waits, over the session's connection."""
        if not self._entries:
            return
        connection = connection or self.binding.connection()
        self._forget_if_over(connection)
        self._watch.check(connection)
        waiting = self._waiting
        if not waiting:
            return
        self._writer.examine(connection)
        self._before_insert(connection)
        self._writer.insert(connection, [entry.posting for entry in waiting])
        inside = tuple(enclosing(self._session))
        for entry in waiting:
            entry.written_in = inside
        if not self._is_ending:
            self._watch.on_inserted(connection)

    @property
    def _waiting(self) -> list[Entry]:
        return [entry for entry in self._entries if not entry.written_in]

    def _examine(self, connection: Connection) -> None:
        session = self._session
        if not self.binding.takes_events(connection):
            return
        self._writer.examine(connection)
        is_nested = connection.in_nested_transaction() and not session.in_nested_transaction()
        if is_nested and not self.binding.is_shared:
            raise TransactionRefused(
                "the connection is in a savepoint that its session knows nothing of: begin it "
                "with session.begin_nested(), so that its events can follow it"
            )
        hear_of(connection, self)

    @property
    def has_events(self) -> bool:
        """Whether there are events that have not been committed."""
        return bool(self._entries)

    def on_begin(self, connection: Connection) -> None:
        """Examine the connection on which a session begins, if that was left for later."""
        # Its transaction may have begun after the events were added.
        if self._must_control:
            self.binding.require_control(connection)
        if self._examines_next:
            self._examine(connection)
        if self._entries:
            hear_of(connection, self)

    def on_before_commit(self) -> None:
        """Insert what waits."""
        session = self._session
        if session.in_nested_transaction():
            # A savepoint's release is no commit: its events wait for the real one. Which may be the
            # cause of the release, and then needs a connection to hear from.
            root = session.get_transaction()
            if self._entries and root is not None and not root.connections:
                self.binding.connection()
            return
        self._is_ending = True
        session.flush()
        self.flush()
        self._refuse_other_databases()

    def on_connection_commit(self, connection: Connection) -> None:
        """Insert what still waits, in the transaction that ends.

        The session's data first: who commits a connection by itself has perhaps not written them.
        """
        try:
            self._refuse_other_databases()
            if self.binding.takes_events(connection):
                if self._entries:
                    self._session.flush()
                # Of a commit of the session all is written, and looked at, mostly.
                if self._waiting or not self._is_ending:
                    self.flush(connection)
                self._watch.forget()
                self._wakes = self._wakes or bool(self._entries)
                self._entries = self._waiting
        except BaseException:
            # After an error in this event, SQLAlchemy takes the transaction for ended: it would go
            # back to the pool with the connection, for somebody else to commit.
            if not connection.invalidated:
                connection.connection.rollback()
            raise

    def on_connection_rollback(self, connection: Connection) -> None:
        """Forget what was inserted at once over a connection of the caller's, who has undone it.

        What waits for a session's commit must not be in one that comes behind this.
        """
        if not self.binding.takes_events(connection):
            return
        if self._at_once:
            self._entries.clear()
            self._watch.forget()
        else:
            self._watch.lose()

    def on_flush(self) -> None:
        """Know that the session has written its data."""
        if self._entries:
            self._watch.on_flush(self.binding.begun_connection)

    def on_failure(self, connection: Connection) -> None:
        """Know that a statement has failed."""
        if self.binding.takes_events(connection):
            self._watch.on_failure(connection)

    def on_statement(self, connection: Connection, statement: str) -> None:
        """Refuse a statement that ends the transaction while events wait for its commit."""
        if not self.has_events or not self.binding.takes_events(connection):
            return
        self._forget_if_over(connection)
        if waiting := self._waiting:
            refuse_end(statement, waiting=len(waiting))
        self._watch.on_statement(connection, statement, at_end=self._is_ending)

    def _forget_if_over(self, connection: Connection) -> None:
        """Forget events whose transaction the owner of a connection has ended by its driver."""
        if self._watch.is_over(connection):
            self._entries.clear()
            self._watch.forget()

    def on_statement_end(self, connection: Connection) -> None:
        """Know that a statement was run: it may have begun the driver's transaction."""
        if self._watch.waits_for_beginning and self.binding.takes_events(connection):
            self._watch.on_statement_end(connection)

    def on_prepare(self, connection: Connection) -> None:
        """Insert what still waits, before the first phase of a commit in two phases."""
        if self.binding.takes_events(connection):
            self.flush(connection)
            self._watch.forget()

    def _refuse_other_databases(self) -> None:
        if self._entries and not self._session.twophase:
            refuse_several_commits(self.binding.connections, self.binding, self._writer)

    def on_after_commit(self) -> None:
        """Let the relay know."""
        self._released = self._session.get_nested_transaction()
        self._committed = self._released is None
        if self._released is None and (self._entries or self._wakes):
            self._after_commit()

    def on_end(self, ended: SessionTransaction) -> None:
        """Forget what was committed, or was rolled back with a savepoint."""
        if ended.parent is None:
            lost = len(self._waiting)
            committed, self._committed = self._committed, False
            self._examines_next = self._must_control = self._is_ending = False
            self._entries.clear()
            self._watch.forget()
            self._wakes = False
            if committed and lost:
                raise TransactionRefused(
                    f"the transaction committed without {lost} of its events, which were added "
                    "when it was ending already: add events before the commit"
                )
        # A savepoint that was not released was rolled back, even if only its end says so: after a
        # flush that failed, or when the session is closed.
        elif ended.nested and ended is not self._released:
            self._watch.on_rolled_back(ended)
            self._entries = [entry for entry in self._entries if ended not in entry.added_in]
            for entry in self._entries:
                if ended in entry.written_in:
                    entry.written_in = ()
            if not self._entries:
                self._watch.forget()
