"""The write side: an event row in the caller's own transaction, or an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util.concurrency import in_greenlet

from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, Event, rollback_of
from shieldtx.domain.schedule import Due, due
from shieldtx.domain.states import TxKind
from shieldtx.errors import EventRefused, TransactionRefused
from shieldtx.outbox.added_ids import AddedIds
from shieldtx.outbox.backlog_limit import BacklogLimiter
from shieldtx.outbox.causation import Handled, handled_in
from shieldtx.outbox.session_binding import SessionBinding
from shieldtx.outbox.session_buffer import SessionBuffer
from shieldtx.outbox.session_events import buffers_of, flush_events
from shieldtx.outbox.transaction import CallersTransaction, caller_of, open_transaction
from shieldtx.ports.outbox import OutboxWriter, Posting


class Outbox:
    """Adds events to the transactions of a service.

    On a Session or AsyncSession, events are gathered and inserted together at its commit. A
    rollback of the savepoint (`session.begin_nested()`) in which they were added removes them. On a
    Connection, or a Session made on one, events are inserted at once.
    """

    def __init__(
        self,
        *,
        source: str,
        event_types: EventTypeRegistry,
        writer: OutboxWriter,
        traceparent: Callable[[], str | None] = lambda: None,
        after_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self._event_types = event_types
        self._writer = writer
        self._backlog_limiter = BacklogLimiter(writer)
        self._traceparent = traceparent
        self.wake = after_commit
        """Wakes the relay, after a commit."""
        self._added_ids = AddedIds()

    def owns(self, envelope: Envelope) -> bool:
        """Whether this service wrote an event of the outbox table.

        The service may have had another name then, and still declares the type. Another service
        that uses the same tables declares types of its own.
        """
        return envelope.source == self.source or self.declares(envelope.type)

    def declares(self, event_type: str) -> bool:
        """Whether this service publishes events of a type."""
        return self._event_types.find(event_type) is not None

    def add(
        self,
        transaction: CallersTransaction,
        event: Event,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        level: int | None = None,
    ) -> UUID:
        """Add one event to the caller's transaction and return its id.

        `delay`, `at` (an aware datetime) or `level` (1 to 18, RocketMQ's delay levels) chooses the
        due time, by the database's clock. Raises EventRefused, which names the field,
        UnknownEventType and TransactionRefused. Raises BacklogExceeded when too many events of its
        topic wait to be sent; delayed events, rollbacks and events of a handler are exempt.
        """
        return self.add_all(transaction, [event], delay=delay, at=at, level=level)[0]

    def add_all(
        self,
        transaction: CallersTransaction,
        events: Iterable[Event],
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        level: int | None = None,
    ) -> list[UUID]:
        """Add several events and return their ids: all, or none and an error of `add`."""
        when = due(delay, at, level)
        return self.add_due(transaction, [(event, when) for event in events])

    def add_due(
        self, transaction: CallersTransaction, events: Iterable[tuple[Event, Due]]
    ) -> list[UUID]:
        """Add events, each with its own due time, as `add_all` does."""
        caller = caller_of(transaction)
        handled = self._handled_in(caller)
        postings = [
            Posting(envelope=self.to_envelope(event, handled), delay=when.delay, at=when.at)
            for event, when in events
        ]
        if not postings:
            return []
        limited: set[str] = set()
        if self._event_types.limits_backlogs and handled is None:
            now = (p.envelope for p in postings if not p.delay and p.at is None)
            limited = {envelope.type for envelope in now if envelope.kind is TxKind.COMMIT}
        if isinstance(caller, Connection):
            self._admit_connection(caller)
            self._refuse_backlog(caller, limited)
            self._writer.insert(caller, postings)
        else:
            buffer = self._admit_session(caller)
            self._refuse_backlog(caller, limited)
            buffer.add(postings)
        ids = [posting.envelope.id for posting in postings]
        self._added_ids.note(_synchronous(caller), ids)
        return ids

    def added_ids(self, transaction: CallersTransaction) -> AbstractContextManager[list[UUID]]:
        """Return a block whose list gets the ids of the events added to this session.

        `with outbox.added_ids(session) as ids: orders.place(session, order)` gives the ids of the
        events that the decorated method published and that `add` added inside of the block, in
        their order. A rollback removes the events, and not their ids from the list.
        """
        return self._added_ids.collect(_synchronous(caller_of(transaction)))

    def add_envelope(self, session: Session, envelope: Envelope) -> None:
        """Add an envelope that shieldtx made itself (a rollback event)."""
        self._admit_session(session).add([Posting(envelope=envelope)])

    def insert_envelopes(self, session: Session, envelopes: Iterable[Envelope]) -> None:
        """Insert envelopes that shieldtx made itself; the caller wakes the relay after its commit.

        In a transaction that shieldtx ends, nothing has to observe the later statements.
        """
        flush_events(session)
        connection = session.connection()
        self._writer.examine(connection)
        self._writer.insert(connection, [Posting(envelope=each) for each in envelopes])

    def cancel(
        self, transaction: Session | Connection | scoped_session[Any], event_id: UUID
    ) -> bool:
        """Discard a delayed event before it is due, in the caller's transaction.

        Returns False when the event was due, sent or never written: `shield.delayed.cancel` returns
        the reason, and also accepts business keys. With an AsyncSession: `await
        session.run_sync(outbox.cancel, event_id)`.
        """
        connection = self.connection_of(transaction, way_out="outbox.cancel, event_id")
        return self._writer.cancel(connection, event_id, who=self.source).done

    def connection_of(self, transaction: CallersTransaction, *, way_out: str) -> Connection:
        """Return the connection of the caller's transaction, after inserting its waiting events.

        Raises TransactionRefused; for an AsyncSession, the message shows `run_sync(way_out)`.
        """
        connection = self._connection_of(transaction, way_out)
        self._writer.locate(connection)
        return connection

    def _connection_of(self, transaction: CallersTransaction, way_out: str) -> Connection:
        caller = caller_of(transaction)
        if isinstance(caller, AsyncSession):
            raise TransactionRefused(
                "an AsyncSession cannot be asked without waiting for the answer: "
                f"use `await session.run_sync({way_out})`"
            )
        if isinstance(caller, Session):
            buffer = self._admit_session(caller)
            buffer.flush()
            return buffer.binding.connection()
        self._admit_connection(caller)
        return caller

    def wake_after(self, transaction: CallersTransaction) -> None:
        """Wake the relay when a session's transaction commits, as if it had added an event."""
        caller = caller_of(transaction)
        if isinstance(caller, Session):
            self._admit_session(caller).wake()

    @contextmanager
    def require_same_transaction(
        self, transaction: CallersTransaction, *, whose: str, event_type: str | None
    ) -> Iterator[None]:
        """Raise TransactionRefused for a transaction that cannot take events, before the block.

        Also after the block, if the block has ended the transaction: the message names `whose`
        block. Before the block, also raises BacklogExceeded, as `add` does for an event of this
        type that is due at once.
        """
        caller = caller_of(transaction)
        if isinstance(caller, Connection):
            self._admit_connection(caller)
        else:
            self._admit_session(caller, lazily=True)
        if event_type is not None and self._handled_in(caller) is None:
            self._refuse_backlog(caller, [event_type])
        begun = open_transaction(caller)
        yield
        if open_transaction(caller) is not begun:
            raise TransactionRefused(
                f"{whose} ended the transaction that it was called with, so its event has none to "
                "go into: leave commit, rollback and close to the caller"
            )

    def rollback_of(self, original: Envelope, *, reason: str) -> Envelope:
        """Return the event by which this service takes `original` back."""
        return rollback_of(original, source=self.source, reason=reason)

    def to_envelope(self, event: Event, handled: Handled | None = None) -> Envelope:
        """Check an event, and convert it into an envelope for the table."""
        payload = self._event_types.encode(event)
        if handled is not None and (cause := handled.cause_of(event)) is not None:
            event = replace(event, causation_id=cause.id, causation_source=cause.source)
        if event.causation_id and not event.causation_source and event.kind is TxKind.COMMIT:
            # A chain of rollbacks would end here.
            raise EventRefused(
                "causation_source",
                f"event {event.causation_id} is not being handled in this transaction: name the "
                "service that it comes from, its `source`, too",
            )
        trace = event.traceparent or self._traceparent()
        if trace is None and handled is not None:
            trace = handled.traceparent_for(event)
        self._event_types.check_trace(trace)
        declared = self._event_types.get(event.type)
        return Envelope(
            id=event.id,
            type=event.type,
            source=self.source,
            topic=declared.topic,
            payload=payload,
            # The row contains the database's time instead.
            time=datetime.now(UTC),
            kind=event.kind,
            operation=event.operation,
            key=event.key,
            biz_key=event.biz_key,
            headers=event.headers,
            causation_id=event.causation_id,
            causation_source=event.causation_source,
            traceparent=trace,
            dataschema=declared.dataschema,
        )

    def _handled_in(self, caller: Session | AsyncSession | Connection) -> Handled | None:
        handled = handled_in(caller)
        if handled is None and isinstance(caller, Session):
            bind = SessionBinding(caller, self._writer).bind
            return handled_in(bind) if isinstance(bind, Connection) else None
        return handled

    def _refuse_backlog(
        self, caller: Session | AsyncSession | Connection, event_types: Collection[str]
    ) -> None:
        """Raise BacklogExceeded when an event of these types must not be added now."""
        if not self._event_types.limits_backlogs or not event_types:
            return
        connection = caller if isinstance(caller, Connection) else None
        if isinstance(caller, Session):
            connection = buffers_of(caller)[self].binding.connection()
        for event_type in event_types:
            self._backlog_limiter.admit(self._event_types.get(event_type), connection)

    def _admit_session(
        self, caller: Session | AsyncSession, *, lazily: bool = False
    ) -> SessionBuffer:
        """Return the session's buffer, after a check that its transaction can take events."""
        session = caller.sync_session if isinstance(caller, AsyncSession) else caller
        buffers = buffers_of(session)
        if self not in buffers:
            buffers[self] = SessionBuffer(
                session, self._writer, self.wake, self._backlog_limiter.sample_for_others
            )
        # A listener of an AsyncSession can query the database, and must: later may be too late.
        is_awaited = isinstance(caller, AsyncSession) and not in_greenlet()
        buffers[self].admit(asynchronous=is_awaited, lazily=lazily)
        return buffers[self]

    def _admit_connection(self, connection: Connection) -> None:
        # As its first statement would do.
        if not connection.in_transaction():
            connection.begin()
        self._writer.examine(connection)


def _synchronous(caller: Session | AsyncSession | Connection) -> Session | Connection:
    return caller.sync_session if isinstance(caller, AsyncSession) else caller
