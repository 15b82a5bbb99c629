"""The events of a session that wait for its commit, in step with its savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, UpdateBase, insert, select
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.domain.events import Envelope
from shieldtx.domain.sql import ends_transaction
from shieldtx.errors import TransactionRefused
from shieldtx.ports.delayed_events import Change, EventRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """An envelope on its way into the table, and when it is due (both None: at once)."""

    envelope: Envelope
    delay: timedelta | None = None
    at: datetime | None = None


_BUFFERS = "shieldtx.buffers"

_FOLLOWED = {"create_savepoint", "control_fully"}
"""Ways of an asynchronous session to join its connection's transaction in which what it has not
committed is gone when it is closed, its events like its data."""

_LEFT_TO_THE_CONNECTION = (
    "this AsyncSession shares the transaction of its connection, which may commit without the "
    "session: make it with join_transaction_mode='create_savepoint', or add events with "
    "`await session.run_sync(outbox.add, event)`"
)


class OutboxWriter(Protocol):
    """Writes rows over the caller's connection, in the transaction that is open there."""

    @property
    def routed_by(self) -> UpdateBase:
        """A change of the outbox, for sessions that choose among databases by the statement."""
        ...

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows with one statement; raises EventRefused for those written before."""
        ...

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, and stop at `upto`."""
        ...

    def examine(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection whose transaction cannot take events.

        It commits each statement by itself, or redirects the rows to another schema.
        """
        ...

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the transaction that is open on a connection may have changed its database.

        Raises TransactionRefused when that cannot be known: a statement has failed in it.
        """
        ...

    def cancel(self, connection: Connection, event: EventRef, *, who: str) -> Change:
        """Discard a delayed event in somebody's name, or say why not."""
        ...


@dataclass(slots=True)
class _Entry:
    """A posting of the transaction that is open."""

    posting: Posting
    added_in: tuple[SessionTransaction, ...]
    """The innermost transaction and those around it: when one is rolled back, the event is gone."""
    written_in: tuple[SessionTransaction, ...] = ()
    """Likewise of its INSERT: when one is rolled back, the row is gone, and the event waits again.
    Empty: not written."""


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
        self._after_commit = after_commit
        self._before_insert = before_insert
        self._entries: list[_Entry] = []
        self._at_once = False
        self._wakes = False
        self._examines_next = False
        """Whether the connection of the events is examined when the session begins on it."""
        self._must_control = False
        """Whether the events are lost where the session leaves the commit to its connection."""
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
        innermost = next(_enclosing(session), None)
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
        is_shared = self._is_shared
        self._must_control = asynchronous and is_shared
        if self._must_control and not self._controls(self._bind):
            raise TransactionRefused(_LEFT_TO_THE_CONNECTION)
        # A session on a caller's Connection may never be committed itself: nothing may wait in it.
        self._at_once = is_shared and not asynchronous
        if asynchronous or lazily:
            self._examines_next = True
            root = session.get_transaction()
            for connection in root.connections if root is not None else ():
                self._examine(connection)
        else:
            self._examine(self.connection())

    def add(self, postings: Iterable[Posting]) -> None:
        """Take postings in; an admitted transaction is open."""
        inside = tuple(_enclosing(self._session))
        self._entries += [_Entry(posting=p, added_in=inside) for p in postings]
        if self._at_once:
            self.flush()

    def wake(self) -> None:
        """Let the relay know of the commit, also if no event comes with it."""
        self._wakes = True

    def flush(self, connection: Connection | None = None) -> None:
        """Insert what waits, over the session's connection."""
        waiting = self._waiting
        if not waiting:
            return
        connection = connection or self.connection()
        self._before_insert(connection)
        self._writer.insert(connection, [entry.posting for entry in waiting])
        inside = tuple(_enclosing(self._session))
        for entry in waiting:
            entry.written_in = inside

    @property
    def _waiting(self) -> list[_Entry]:
        return [entry for entry in self._entries if not entry.written_in]

    def connection(self) -> Connection:
        """Return the connection that events go over."""
        return self._session.connection(bind_arguments={"clause": self._routed_by})

    @property
    def _routed_by(self) -> UpdateBase:
        """The statement by which a session of its own kind finds the database of the events.

        Most routers know an UPDATE as a write; some know only an INSERT.
        """
        change, get_bind = self._writer.routed_by, self._session.get_bind
        if type(self._session).get_bind is Session.get_bind:
            return change
        if get_bind(clause=change) is get_bind(clause=select(change.table)):
            return insert(change.table)
        return change

    @property
    def _bind(self) -> Engine | Connection:
        """What the session reaches the database of the events by."""
        try:
            return self._session.get_bind(clause=self._routed_by)
        except UnboundExecutionError as error:
            raise TransactionRefused(
                "the session has databases for its classes or tables only, so that of the events "
                "is unknown: make it with Session(bind=engine, binds={...}), where `engine` is "
                "that of shieldtx's tables"
            ) from error

    @property
    def _is_shared(self) -> bool:
        """Whether the session takes part in the transaction of its caller's Connection."""
        return isinstance(self._bind, Connection)

    def _controls(self, connection: Engine | Connection) -> bool:
        """Whether what the session does not commit on a connection is gone when it is closed.

        The default mode (`conditional_savepoint`) depends on the connection: in a savepoint of the
        connection the session makes one of its own, without a transaction it begins one.
        """
        session = self._session
        root = session.get_transaction()
        joined = root._connections.get(connection) if root is not None else None  # noqa: SLF001  how it was joined
        if joined is not None:
            _, _, is_committed, _ = joined
            return is_committed
        if not isinstance(connection, Connection) or not connection.in_transaction():
            return True
        if session.join_transaction_mode == "conditional_savepoint":
            return connection.in_nested_transaction()
        return session.join_transaction_mode in _FOLLOWED

    def _examine(self, connection: Connection) -> None:
        session = self._session
        if not self._takes_events(connection):
            return
        self._writer.examine(connection)
        is_nested = connection.in_nested_transaction() and not session.in_nested_transaction()
        if is_nested and not self._is_shared:
            raise TransactionRefused(
                "the connection is in a savepoint that its session knows nothing of: begin it "
                "with session.begin_nested(), so that its events can follow it"
            )
        self._hear_of(connection)

    def _takes_events(self, connection: Connection) -> bool:
        """Whether a connection is to the database of the events, among those of the session."""
        return connection.engine is self._bind.engine

    def _hear_of(self, connection: Connection) -> None:
        """Hear of a connection's commit.

        Whoever commits: the session, the connection by itself; and events may still come after
        `before_commit`, from the flush of the commit itself.
        """
        heard_by: list[SessionBuffer] | None = connection.get_execution_options().get(_BUFFERS)
        if heard_by is None:
            heard_by = []
            connection.execution_options(**{_BUFFERS: heard_by})
        if self not in heard_by:
            # A connection may outlive many sessions that were made on it.
            heard_by[:] = [buffer for buffer in heard_by if buffer._entries]  # noqa: SLF001  its like
            heard_by.append(self)

    def on_begin(self, connection: Connection) -> None:
        """Examine the connection on which a session begins, if that was left for later."""
        # Its transaction may have begun after the events were added.
        if self._must_control and not self._controls(connection):
            raise TransactionRefused(_LEFT_TO_THE_CONNECTION)
        if self._examines_next:
            self._examine(connection)
        if self._entries:
            self._hear_of(connection)

    def on_before_commit(self) -> None:
        """Insert what waits."""
        session = self._session
        if session.in_nested_transaction():
            # A savepoint's release is no commit: its events wait for the real one. Which may be the
            # cause of the release, and then needs a connection to hear from.
            root = session.get_transaction()
            if self._entries and root is not None and not root.connections:
                self.connection()
            return
        session.flush()
        self.flush()
        self._refuse_other_databases()
        root = session.get_transaction()
        if self._entries and root is not None:
            for connection in root.connections:
                self._hear_of(connection)

    def on_connection_commit(self, connection: Connection) -> None:
        """Insert what still waits, in the transaction that ends.

        The session's data first: who commits a connection by itself has perhaps not written them.
        """
        try:
            self._refuse_other_databases()
            if self._takes_events(connection):
                if self._entries:
                    self._session.flush()
                self.flush(connection)
        except BaseException:
            # After an error in this event, SQLAlchemy takes the transaction for ended: it would go
            # back to the pool with the connection, for somebody else to commit.
            connection.connection.rollback()
            raise

    def on_statement(self, connection: Connection, statement: str) -> None:
        """Refuse a statement that ends the transaction while events wait for its commit.

        SQLAlchemy would not know of the end: a COMMIT would leave the events behind, and those of a
        transaction that was rolled back would go into the next one.
        """
        waiting = self._entries and self._waiting
        if waiting and ends_transaction(statement) and self._takes_events(connection):
            raise TransactionRefused(
                f"the statement {statement.strip()[:40]!r} would end the transaction without "
                f"{len(waiting)} of its events: call session.commit() or session.rollback()"
            )

    def on_prepare(self, connection: Connection) -> None:
        """Insert what still waits, before the first phase of a commit in two phases."""
        if self._takes_events(connection):
            self.flush(connection)

    def _refuse_other_databases(self) -> None:
        """Raise TransactionRefused when the commit of one database may succeed alone.

        One that was only read does no harm: its commit decides nothing.
        """
        root = self._session.get_transaction()
        if not self._entries or root is None or self._session.twophase:
            return
        if len(root.connections) > 1 and sum(map(self._is_to_be_committed, root.connections)) > 1:
            raise TransactionRefused(
                "the session writes into several databases, whose commits may end differently, so "
                "the event could be published without the data, or the data be kept without it: "
                "use Session(twophase=True), a half message (docs/transactional-messages.md), or "
                "a session for each database"
            )

    def _is_to_be_committed(self, connection: Connection) -> bool:
        return connection.in_transaction() and (
            self._takes_events(connection) or self._writer.may_have_written(connection)
        )

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
            self._examines_next = self._must_control = False
            self._entries.clear()
            self._wakes = False
            if committed and lost:
                raise TransactionRefused(
                    f"the transaction committed without {lost} of its events, which were added "
                    "when it was ending already: add events before the commit"
                )
        # A savepoint that was not released was rolled back, even if only its end says so: after a
        # flush that failed, or when the session is closed.
        elif ended.nested and ended is not self._released:
            self._entries = [entry for entry in self._entries if ended not in entry.added_in]
            for entry in self._entries:
                if ended in entry.written_in:
                    entry.written_in = ()


def buffers_of(session: Session) -> dict[object, SessionBuffer]:
    """Return the buffers of a session, by the outbox that fills them."""
    buffers: dict[object, SessionBuffer] = session.info.setdefault(_BUFFERS, {})
    return buffers


# Heard from all connections and sessions of the process: to listen to one costs as much as to write
# an event.
@sqlalchemy_event.listens_for(Engine, "commit")
def _on_connection_commit(connection: Connection) -> None:
    for buffer in _hearing(connection):
        buffer.on_connection_commit(connection)


@sqlalchemy_event.listens_for(Engine, "before_cursor_execute")
def _on_statement(connection: Connection, _cursor: Any, statement: str, *_how: Any) -> None:
    for buffer in _hearing(connection):
        buffer.on_statement(connection, statement)


@sqlalchemy_event.listens_for(Engine, "prepare_twophase")
def _on_prepare(connection: Connection, _: Any) -> None:
    for buffer in _hearing(connection):
        buffer.on_prepare(connection)


@sqlalchemy_event.listens_for(Session, "after_begin")
def _on_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    for buffer in _known(session):
        buffer.on_begin(connection)


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    for buffer in _known(session):
        buffer.on_before_commit()


@sqlalchemy_event.listens_for(Session, "after_commit")
def _on_after_commit(session: Session) -> None:
    for buffer in _known(session):
        buffer.on_after_commit()


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    for buffer in _known(session):
        buffer.on_end(ended)


def _known(session: Session) -> list[SessionBuffer]:
    """Return the buffers of a session, which has none for most."""
    return list(session.info[_BUFFERS].values()) if _BUFFERS in session.info else []


def _hearing(connection: Connection) -> list[SessionBuffer]:
    """Return the buffers that hear of a connection's commit."""
    return list(connection.get_execution_options().get(_BUFFERS, ()))


def _enclosing(session: Session) -> Iterator[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent
