"""Lists, cancels and reschedules delayed events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from shieldtx.domain.schedule import due
from shieldtx.errors import EventRefused
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.delayed_events import Change, DelayedEvent, DelayedEventStore, EventRef


class DelayedEvents:
    """Lists, cancels and reschedules delayed events, in the caller's transaction.

    A change and its audit entry are part of that transaction: a rollback undoes both. With an
    AsyncSession: `await session.run_sync(shield.delayed.cancel, event_id)`. All methods raise
    TransactionRefused for an argument that is not a usable transaction, and changes raise
    EventRefused for an argument that cannot name an event.
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
        biz_key: str | None = None,
    ) -> Sequence[DelayedEvent]:
        """Return up to `limit` events that wait for their due time, the next due first."""
        connection = self._outbox.connection_of(transaction, way_out="shield.delayed.waiting")
        return self._store.waiting(
            connection,
            limit=limit,
            event_type=event_type,
            topic=topic,
            key=key,
            biz_key=biz_key,
        )

    def cancel(
        self,
        transaction: CallersTransaction,
        event: EventRef,
        *,
        who: str | None = None,
        reason: str | None = None,
    ) -> Change:
        """Discard an event that is not due yet, and return the result: false if it is due.

        A false result contains the reason. `event` is an id, or a BizKey. The audit log names
        `who`, by default this service, and `reason`, if there is one. Relays skip the event until
        the transaction ends, even if it becomes due.
        """
        connection = self._outbox.connection_of(
            transaction, way_out="shield.delayed.cancel, event_id"
        )
        return self._store.cancel(connection, event, who=who or self._outbox.source, reason=reason)

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
        """Change the due time of an event that is not due yet; return the result as `cancel` does.

        `delay` counts from now, `at` is an aware datetime, `level` is 1 to 18. Raises EventRefused
        unless exactly one of them is given, with a possible value.
        """
        when = due(delay, at, level)
        if when.delay is None and when.at is None:
            raise EventRefused("delay", "give one of delay=, at= and level=")
        connection = self._outbox.connection_of(
            transaction, way_out="shield.delayed.reschedule, event_id, delay=delay"
        )
        change = self._store.reschedule(connection, event, when, who=who or self._outbox.source)
        if change.done:
            # The event may be due before all others that the relay knows.
            self._outbox.wake_after(transaction)
        return change
