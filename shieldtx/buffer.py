"""The events of a session that wait for its commit, in step with its savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.errors import TransactionRefused
from shieldtx.events import Envelope
from shieldtx.ports import Change, Named


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """An envelope on its way into the table, and when it is due (both None: at once)."""

    envelope: Envelope
    delay: timedelta | None = None
    at: datetime | None = None


_BUFFERS = "shieldtx.buffers"


class OutboxWriter(Protocol):
    """Writes rows over the caller's connection, in the transaction that is open there."""

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows with one statement; raises EventRefused for those written before."""
        ...

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, and stop at `upto`."""
        ...

    def refuse_autocommit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself."""
        ...

    def cancel(self, connection: Connection, event: Named, *, who: str) -> Change:
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


class Buffer:
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
        self._asynchronous = False
        self._released: SessionTransaction | None = None

    def admit(self, *, asynchronous: bool) -> None:
        """Make sure that events can go into the session's transaction, or raise TransactionRefused.

        Begins the transaction where the session does so by itself. On an `asynchronous` session,
        which cannot reach its database here, what is not known yet is examined later, but before
        its first statement.
        """
        session = self._session
        if not session.in_transaction():
            if not session.autobegin:
                raise TransactionRefused(
                    "the session has no transaction and does not begin one by itself: "
                    "call session.begin() before adding events"
                )
            session.begin()
        # A session on somebody's Connection may never be committed itself: nothing may wait in it.
        self._at_once = not asynchronous and isinstance(session.bind, Connection)
        self._asynchronous = asynchronous
        if asynchronous:
            self._admit_asynchronous()
        else:
            self._examine(session.connection())

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
        waiting = [entry for entry in self._entries if not entry.written_in]
        if not waiting:
            return
        connection = connection or self._session.connection()
        self._before_insert(connection)
        self._writer.insert(connection, [entry.posting for entry in waiting])
        inside = tuple(_enclosing(self._session))
        for entry in waiting:
            entry.written_in = inside

    def _admit_asynchronous(self) -> None:
        session = self._session
        if isinstance(session.bind, Connection) and (
            session.join_transaction_mode not in {"create_savepoint", "control_fully"}
        ):
            raise TransactionRefused(
                "this AsyncSession shares the transaction of its connection, which may commit "
                "without the session: make it with join_transaction_mode='create_savepoint', or "
                "add events with `await session.run_sync(outbox.add, event)`"
            )
        root = session.get_transaction()
        for connection in root.connections if root is not None else ():
            self._examine(connection)

    def _examine(self, connection: Connection) -> None:
        self._writer.refuse_autocommit(connection)
        session = self._session
        if isinstance(session.bind, Connection):
            return
        if connection.in_nested_transaction() and not session.in_nested_transaction():
            raise TransactionRefused(
                "the connection is in a savepoint that its session knows nothing of: begin it "
                "with session.begin_nested(), so that its events can follow it"
            )
        if _BUFFERS not in connection.get_execution_options():
            # Whoever commits: the session, the connection by itself; and events may still come
            # after `before_commit`, from the flush of the commit itself.
            connection.execution_options(**{_BUFFERS: buffers_of(session)})

    def on_begin(self, connection: Connection) -> None:
        """Examine the connection on which an asynchronous session begins."""
        if self._asynchronous and self._entries:
            self._examine(connection)

    def on_before_commit(self) -> None:
        """Insert what waits."""
        session = self._session
        if session.in_nested_transaction():
            # A savepoint's release is no commit: its events wait for the real one. Which may be the
            # cause of the release, and then needs a connection to hear from.
            root = session.get_transaction()
            if self._entries and root is not None and not root.connections:
                session.connection()
            return
        session.flush()
        self.flush()

    def on_connection_commit(self, connection: Connection) -> None:
        """Insert what still waits, in the transaction that ends."""
        try:
            self.flush(connection)
        except BaseException:
            # After an error in this event, SQLAlchemy takes the transaction for ended: it would go
            # back to the pool with the connection, for somebody else to commit.
            connection.connection.rollback()
            raise

    def on_after_commit(self) -> None:
        """Let the relay know."""
        self._released = self._session.get_nested_transaction()
        if self._released is None and (self._entries or self._wakes):
            self._after_commit()

    def on_end(self, ended: SessionTransaction) -> None:
        """Forget what was committed, or was rolled back with a savepoint."""
        if ended.parent is None:
            self._entries.clear()
            self._wakes = False
        # A savepoint that was not released was rolled back, even if only its end says so: after a
        # flush that failed, or when the session is closed.
        elif ended.nested and ended is not self._released:
            self._entries = [entry for entry in self._entries if ended not in entry.added_in]
            for entry in self._entries:
                if ended in entry.written_in:
                    entry.written_in = ()


def buffers_of(session: Session) -> dict[object, Buffer]:
    """Return the buffers of a session, by the outbox that fills them."""
    buffers: dict[object, Buffer] = session.info.setdefault(_BUFFERS, {})
    return buffers


# Heard from all connections and sessions of the process: to listen to one costs as much as to write
# an event.
@sqlalchemy_event.listens_for(Engine, "commit")
def _on_connection_commit(connection: Connection) -> None:
    for buffer in _known(connection.get_execution_options()):
        buffer.on_connection_commit(connection)


@sqlalchemy_event.listens_for(Session, "after_begin")
def _on_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    for buffer in _known(session.info):
        buffer.on_begin(connection)


@sqlalchemy_event.listens_for(Session, "before_commit")
def _on_before_commit(session: Session) -> None:
    for buffer in _known(session.info):
        buffer.on_before_commit()


@sqlalchemy_event.listens_for(Session, "after_commit")
def _on_after_commit(session: Session) -> None:
    for buffer in _known(session.info):
        buffer.on_after_commit()


@sqlalchemy_event.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    for buffer in _known(session.info):
        buffer.on_end(ended)


def _known(holder: Mapping[Any, Any]) -> list[Buffer]:
    """Return the buffers that a session's `info`, or a connection's options, hold."""
    return list(holder[_BUFFERS].values()) if _BUFFERS in holder else []


def _enclosing(session: Session) -> Iterator[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent
