"""The write side: an event row in the caller's own transaction, or an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from shieldtx.catalog import Catalog
from shieldtx.errors import EventRefused, TransactionRefused
from shieldtx.events import Envelope, Event, new_event_id, storable
from shieldtx.states import TxKind

CallersTransaction: TypeAlias = Session | AsyncSession | Connection

LONGEST_REASON = 2000
"""Characters of the reason that a rollback event carries."""

_BUFFER = "shieldtx.outbox"
_HANDLING = "shieldtx.handling"


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """An envelope on its way into the table, and when it is due (both None: at once)."""

    envelope: Envelope
    delay: timedelta | None = None
    at: datetime | None = None


class OutboxWriter(Protocol):
    """Writes rows over the caller's connection, in the transaction that is open there."""

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows with one statement."""
        ...

    def refuse_autocommit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself."""
        ...

    def cancel(self, connection: Connection, event_id: UUID) -> bool:
        """Discard a delayed event; False when it is too late or there is none."""
        ...


class Outbox:
    """Adds events to the transactions of a service.

    On a Session or AsyncSession they are gathered and inserted together when the session flushes or
    commits; a rolled back savepoint drops its own. On a Connection they are inserted at once.
    """

    def __init__(
        self,
        *,
        source: str,
        catalog: Catalog,
        writer: OutboxWriter,
        traceparent: Callable[[], str | None] = lambda: None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self._catalog = catalog
        self._writer = writer
        self._traceparent = traceparent
        self._after_commit = after_commit

    def add(
        self,
        transaction: CallersTransaction,
        event: Event,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
    ) -> UUID:
        """Add one event to the caller's transaction and return its id.

        `delay` or `at` (an aware datetime) choose when it is due, by the database's clock. Raises
        EventRefused naming the field, UnknownEventType, TransactionRefused.
        """
        return self.add_all(transaction, [event], delay=delay, at=at)[0]

    def add_all(
        self,
        transaction: CallersTransaction,
        events: Iterable[Event],
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
    ) -> list[UUID]:
        """Add several events: all of them, or none and an error as of `add`."""
        _check_due(delay, at)
        session = _session_of(transaction)
        handling = session.info.get(_HANDLING) if session is not None else None
        postings = [
            Posting(envelope=self._seal(event, handling), delay=delay, at=at) for event in events
        ]
        if session is not None:
            self._buffer_of(session, transaction).add(postings)
        elif isinstance(transaction, Connection):
            self._writer.refuse_autocommit(transaction)
            self._writer.insert(transaction, postings)
        return [posting.envelope.id for posting in postings]

    def add_envelope(self, session: Session, envelope: Envelope) -> None:
        """Add an envelope that shieldtx made itself (a rollback event)."""
        self._buffer_of(session, session).add([Posting(envelope=envelope)])

    def cancel(self, transaction: Session | Connection, event_id: UUID) -> bool:
        """Discard a delayed event before it is due, in the caller's transaction.

        Returns False when there is nothing to cancel any more: it was due, sent or never there.
        """
        if isinstance(transaction, Session):
            pending = _existing_buffer(transaction)
            if pending is not None:
                pending.flush()
            transaction = transaction.connection()
        self._writer.refuse_autocommit(transaction)
        return self._writer.cancel(transaction, event_id)

    def rollback_of(self, original: Envelope, *, reason: str) -> Envelope:
        """Make the event that takes `original` back: same type, topic and key, the other way."""
        return Envelope(
            id=new_event_id(),
            type=original.type,
            source=self.source,
            topic=original.topic,
            payload=json.dumps({"reason": storable(reason, LONGEST_REASON)}, ensure_ascii=False),
            # Replaced by the database's time in the row.
            time=datetime.now(UTC),
            kind=TxKind.ROLLBACK,
            operation=original.operation,
            key=original.key,
            biz_key=original.biz_key,
            causation_id=original.id,
            causation_source=original.source,
            traceparent=original.traceparent,
        )

    def _seal(self, event: Event, handling: Event | None) -> Envelope:
        """Check an event and turn it into what the table holds."""
        payload = self._catalog.encode(event)
        if handling is not None and event.causation_id is None:
            event = replace(event, causation_id=handling.id, causation_source=handling.source)
        trace = event.traceparent or self._traceparent()
        if trace is None and handling is not None:
            trace = handling.traceparent
        self._catalog.check_trace(trace)
        return Envelope(
            id=event.id,
            type=event.type,
            source=self.source,
            topic=self._catalog.get(event.type).topic,
            payload=payload,
            # Replaced by the database's time in the row.
            time=datetime.now(UTC),
            kind=event.kind,
            operation=event.operation,
            key=event.key,
            biz_key=event.biz_key,
            headers=event.headers,
            causation_id=event.causation_id,
            causation_source=event.causation_source,
            traceparent=trace,
        )

    def _buffer_of(self, session: Session, transaction: CallersTransaction) -> _Buffer:
        buffer = _existing_buffer(session)
        if buffer is None:
            if not session.in_transaction() and not session.autobegin:
                raise TransactionRefused(
                    "the session has no transaction and does not begin one by itself: "
                    "call session.begin() before adding events"
                )
            buffer = _Buffer(session, self._writer, self._after_commit)
            session.info[_BUFFER] = buffer
        buffer.prepare(can_execute=not isinstance(transaction, AsyncSession))
        return buffer


def handling(session: Session, event: Event | None) -> None:
    """Let events that are added on `session` name `event` as their cause."""
    session.info[_HANDLING] = event


class _Buffer:
    """The events of one session that wait for their INSERT, with the transactions they are in."""

    def __init__(
        self, session: Session, writer: OutboxWriter, after_commit: Callable[[], None]
    ) -> None:
        self._session = session
        self._writer = writer
        self._after_commit = after_commit
        self._waiting: list[tuple[tuple[SessionTransaction, ...], Posting]] = []
        self._wrote = False
        self._at_once = False
        sqlalchemy_event.listen(session, "after_flush", self._on_flush)
        sqlalchemy_event.listen(session, "before_commit", self._on_before_commit)
        sqlalchemy_event.listen(session, "after_commit", self._on_after_commit)
        sqlalchemy_event.listen(session, "after_soft_rollback", self._on_rollback)

    def prepare(self, *, can_execute: bool) -> None:
        """Make sure that there is a transaction to write into, as early as the session allows."""
        if not self._session.in_transaction():
            self._session.begin()
        if can_execute:
            self._writer.refuse_autocommit(self._session.connection())
        # A session on somebody's Connection may never be committed itself: nothing may wait in it.
        self._at_once = can_execute and isinstance(self._session.bind, Connection)

    def add(self, postings: Iterable[Posting]) -> None:
        inside = tuple(_enclosing(self._session))
        self._waiting += [(inside, posting) for posting in postings]
        if self._at_once:
            self.flush()

    def flush(self) -> None:
        """Insert what waits."""
        if not self._waiting:
            return
        connection = self._session.connection()
        self._writer.refuse_autocommit(connection)
        self._writer.insert(connection, [posting for _, posting in self._waiting])
        self._waiting.clear()
        self._wrote = True

    def _on_flush(self, session: Session, context: Any) -> None:  # noqa: ARG002  SQLAlchemy's signature
        self.flush()

    def _on_before_commit(self, session: Session) -> None:
        # A savepoint's release is no commit: its events wait for the real one, and a rollback of
        # the transaction around it still drops them.
        if session.get_nested_transaction() is None:
            # The business rows first: their locks decide the order of concurrent writers of a key,
            # and the events' sequence numbers must follow it.
            session.flush()
            self.flush()

    def _on_after_commit(self, session: Session) -> None:  # noqa: ARG002  SQLAlchemy's signature
        if self._wrote:
            self._wrote = False
            self._after_commit()

    def _on_rollback(self, session: Session, ended: SessionTransaction) -> None:  # noqa: ARG002  SQLAlchemy's signature
        self._waiting = [(inside, p) for inside, p in self._waiting if ended not in inside]
        if ended.parent is None:
            self._wrote = False


def _existing_buffer(session: Session) -> _Buffer | None:
    buffer: _Buffer | None = session.info.get(_BUFFER)
    return buffer


def _enclosing(session: Session) -> Iterable[SessionTransaction]:
    """Yield the innermost open transaction of the session and all around it."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def _session_of(transaction: CallersTransaction) -> Session | None:
    if isinstance(transaction, AsyncSession):
        return transaction.sync_session
    if isinstance(transaction, Session):
        return transaction
    if isinstance(transaction, Connection):
        return None
    raise TransactionRefused(
        f"events are added on a Session, AsyncSession or Connection, not on a "
        f"{type(transaction).__name__}"
    )


def _check_due(delay: timedelta | None, at: datetime | None) -> None:
    if delay is not None and at is not None:
        raise EventRefused("delay", "give either delay= or at=, not both")
    if delay is not None and delay < timedelta(0):
        raise EventRefused("delay", f"{delay} is in the past")
    if at is not None and at.tzinfo is None:
        raise EventRefused("at", f"{at} has no time zone; use an aware datetime")
