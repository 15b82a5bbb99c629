"""Events that wait for their time: what there is, and how they are called back or moved."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shieldtx.domain.schedule import due
from shieldtx.errors import EventRefused
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.delayed_events import Change, DelayedEvent, DelayedEventStore, EventRef


class DelayedEvents:
    """The delayed events of a service, in the caller's transaction.

    A change is part of that transaction, with its audit entry: rolled back, it did not happen. With
    an AsyncSession: `await session.run_sync(shield.delayed.cancel, event_id)`. All methods raise
    TransactionRefused for what is no transaction.
    """

    def __init__(self, *, outbox: Outbox, store: DelayedEventStore) -> None:
        self._outbox = outbox
        self._store = store

    def waiting(
        self,
        transaction: CallersTransaction,
        *,
        limit: int = 100,
        event_type: str | None = None,
        topic: str | None = None,
        key: str | None = None,
    ) -> Sequence[DelayedEvent]:
        """Return up to `limit` events that wait for their time, the next due first."""
        connection = self._outbox.connection_of(transaction, way_out="shield.delayed.waiting")
        return self._store.waiting(
            connection, limit=limit, event_type=event_type, topic=topic, key=key
        )

    def cancel(
        self, transaction: CallersTransaction, event: EventRef, *, who: str | None = None
    ) -> Change:
        """Discard an event that is not due yet; the answer is false, and says why, if it is.

        `event` is an id, or a BizKey. The audit names `who`, by default this service. Relays
        pass over the event until the transaction ends, even if it becomes due.
        """
        connection = self._outbox.connection_of(
            transaction, way_out="shield.delayed.cancel, event_id"
        )
        return self._store.cancel(connection, event, who=who or self._outbox.source)

    def reschedule(
        self,
        transaction: CallersTransaction,
        event: EventRef,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        level: int | None = None,
        who: str | None = None,
    ) -> Change:
        """Give an event that is not due yet another time: from now on, or at an aware datetime.

        Answers as `cancel` does. Raises EventRefused unless one of the three is given, and can be.
        """
        when = due(delay, at, level)
        if when.delay is None and when.at is None:
            raise EventRefused("delay", "give one of delay=, at= and level=")
        connection = self._outbox.connection_of(
            transaction, way_out="shield.delayed.reschedule, event_id, delay=delay"
        )
        change = self._store.reschedule(connection, event, when, who=who or self._outbox.source)
        if change.done:
            # It may be due before all that the relay knows of.
            self._outbox.wake_after(transaction)
        return change
