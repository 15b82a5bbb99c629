"""The events of a session that wait for its commit, in step with its savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlalchemy import Connection
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.outbox.connection_buffers import register
from shieldtx.outbox.entries import Entry
from shieldtx.outbox.session_binding import SessionBinding
from shieldtx.outbox.session_savepoints import enclosing, is_in_unknown_savepoint
from shieldtx.outbox.several_commits import refuse_several_commits
from shieldtx.outbox.transaction_watch import TransactionWatch, refuse_end
from shieldtx.ports.outbox import OutboxWriter, Posting


class SessionBuffer:
    """Keeps the events of one session until its transaction commits, and inserts them together.

    The INSERT comes last: by then the transaction holds the locks of all its business rows. So
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
        """Whether to examine the connection of the events when the session begins on it."""
        self._must_control = False
        """Whether events would be lost if the session left the commit to its connection."""
        self._is_awaited = False
        """Whether the latest events were added where a database query is impossible."""
        self._is_ending = False
        """Whether the session is about to commit, with the events."""
        self._committed = False
        self._released: SessionTransaction | None = None

    def admit(self, *, asynchronous: bool, lazily: bool = False) -> None:
        """Check that the session's transaction can take events, or raise TransactionRefused.

        Begins the transaction if the session begins one automatically. An `asynchronous` session
        cannot query its database here, so unknown facts are examined later, but before its first
        statement. The same applies to any session with `lazily`: its caller has still to choose how
        the session connects.
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
        # After a failed commit, the session may have continued.
        self._is_ending = False
        self._is_awaited = asynchronous
        is_shared = self.binding.is_shared
        self._must_control = asynchronous and is_shared
        if self._must_control:
            self.binding.require_control(self.binding.bind)
        # A session on a caller's Connection may never be committed itself: so no event waits in it.
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
            # Check first: a later check would forget these postings too.
            self._forget_if_over(self.binding.connection())
        else:
            self._watch.on_wait(self.binding.begun_connection, may_ask=not self._is_awaited)
        inside = tuple(enclosing(self._session))
        self._entries += [Entry(posting=p, added_in=inside) for p in postings]
        # Register on every connection: the session may commit, or a connection by itself. The flush
        # of the commit itself may still add events after `before_commit`.
        for connection in self.binding.connections:
            register(connection, self)
        if self._at_once:
            self._flush_data()
            self.flush()

    def _flush_data(self) -> None:
        """Write the session's data before its events, so that any rollback undoes both.

        A closed session may leave executed statements to its connection, and drop the rest. Where
        it drops both, a driver's block does not receive objects from before the block.
        """
        session, binding = self._session, self.binding
        if session._flushing:  # noqa: SLF001  a flush cannot run inside a flush
            return
        is_in_block = self._writer.marks.is_in_block(binding.connection())
        if not (is_in_block and binding.controls(binding.bind)):
            session.flush()

    def wake(self) -> None:
        """Wake the relay after the commit, even without an event."""
        self._wakes = True

    def flush(self, connection: Connection | None = None) -> None:
        """Insert the waiting events, over the session's connection."""
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
        if not self.binding.takes_events(connection):
            return
        self._writer.examine(connection)
        if not self.binding.is_shared and is_in_unknown_savepoint(self._session, connection):
            raise TransactionRefused(
                "the connection is in a savepoint that its session knows nothing of: begin it "
                "with session.begin_nested(), so that its events can follow it"
            )
        register(connection, self)

    @property
    def has_events(self) -> bool:
        """Whether there are events that have not been committed."""
        return bool(self._entries)

    def on_begin(self, connection: Connection) -> None:
        """Examine the connection on which a session begins, if that was deferred."""
        # The connection's transaction may have begun after the events were added.
        if self._must_control:
            self.binding.require_control(connection)
        if self._examines_next:
            self._examine(connection)
        if self._entries:
            register(connection, self)

    def on_before_commit(self) -> None:
        """Insert the waiting events."""
        session = self._session
        if session.in_nested_transaction():
            # The release of a savepoint is not a commit: its events wait for the real commit. The
            # real commit may have caused the release, and needs a connection that notifies this
            # buffer.
            if self._entries and not self.binding.connections:
                self.binding.connection()
            return
        self._is_ending = True
        session.flush()
        self.flush()
        self._refuse_other_databases()

    def on_connection_commit(self, connection: Connection) -> None:
        """Insert the events that still wait, in the transaction that ends.

        The session's data go first: a caller that commits the connection itself may not have
        written them.
        """
        try:
            self._refuse_other_databases()
            if self.binding.takes_events(connection):
                if self._entries:
                    self._session.flush()
                # At a commit of the session, everything is usually written and checked already.
                if self._waiting or not self._is_ending:
                    self.flush(connection)
                self._watch.forget()
                self._wakes = self._wakes or bool(self._entries)
                self._entries = self._waiting
        except BaseException:
            # After an error in this event, SQLAlchemy treats the transaction as ended. The
            # connection would return to the pool with it, and another user could commit it.
            if not connection.invalidated:
                connection.connection.rollback()
            raise

    def on_connection_rollback(self, connection: Connection) -> None:
        """Forget the events inserted at once over a caller's connection that has rolled back.

        Events that wait for a session's commit must not go into a later transaction.
        """
        if not self.binding.takes_events(connection):
            return
        if self._at_once:
            self._entries.clear()
            self._watch.forget()
        else:
            self._watch.lose()

    def on_flush(self) -> None:
        """Handle a flush of the session's data."""
        if self._entries:
            self._watch.on_flush(self.binding.begun_connection)

    def on_failure(self, connection: Connection) -> None:
        """Handle a failed statement."""
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
        """Forget events whose transaction the connection's owner has ended through its driver."""
        if self._watch.is_over(connection):
            self._entries.clear()
            self._watch.forget()

    def on_statement_end(self, connection: Connection) -> None:
        """Handle the end of a statement, which may have begun the driver's transaction."""
        if self._watch.waits_for_beginning and self.binding.takes_events(connection):
            self._watch.on_statement_end(connection)

    def on_prepare(self, connection: Connection) -> None:
        """Insert the events that still wait, before the first phase of a two-phase commit."""
        if self.binding.takes_events(connection):
            self._writer.require_two_phases(connection)
            self.flush(connection)
            self._watch.forget()

    def _refuse_other_databases(self) -> None:
        if self._entries and not self._session.twophase:
            refuse_several_commits(self.binding.connections, self.binding, self._writer)

    def on_after_commit(self) -> None:
        """Wake the relay after a commit with events."""
        self._released = self._session.get_nested_transaction()
        self._committed = self._released is None
        if self._released is None and (self._entries or self._wakes):
            self._after_commit()

    def on_end(self, ended: SessionTransaction) -> None:
        """Forget events that were committed, or rolled back with a savepoint."""
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
        # A savepoint that was not released was rolled back, even if only its end shows this: after
        # a failed flush, or when the session is closed.
        elif ended.nested and ended is not self._released:
            self._watch.on_rolled_back(ended)
            self._entries = [entry for entry in self._entries if ended not in entry.added_in]
            for entry in self._entries:
                if ended in entry.written_in:
                    entry.written_in = ()
            if not self._entries:
                self._watch.forget()
