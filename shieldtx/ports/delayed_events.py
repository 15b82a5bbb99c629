"""Delayed events, and the results of requests to change one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.domain.schedule import Due
from shieldtx.domain.states import OutboxStatus


class BizKey(NamedTuple):
    """Names an event by its type and business key, which are unique in the outbox."""

    event_type: str
    biz_key: str


EventRef: TypeAlias = UUID | BizKey
"""An event, by its id or by its business key."""


class ChangeResult(StrEnum):
    """The result of a request to cancel or reschedule an event."""

    DONE = "done"
    """The event is changed as requested; final when the caller's transaction commits."""

    UNKNOWN = "unknown"
    """The outbox has no such event: never written, not committed yet, or purged."""

    NOT_DELAYED = "not delayed"
    """The event does not wait for a chosen time, but for its key or for a check-back."""

    DUE = "due"
    """The event is due, and a relay may claim it at any moment."""

    UNCONFIRMED = "unconfirmed"
    """The event waits for its next attempt, and an earlier, unconfirmed attempt may have delivered
    it."""

    CLAIMED = "claimed"
    """A relay is publishing the event."""

    PUBLISHED = "published"
    """The broker has acknowledged the event."""

    CANCELLED = "cancelled"
    """The event was cancelled or discarded before."""

    FAILED = "failed"
    """The event could not be published, and waits for an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """The result of a request to cancel or reschedule an event; true if the event was changed."""

    result: ChangeResult
    event_id: UUID | None = None
    """The event's id; None: no such event."""
    status: OutboxStatus | None = None
    """The event's status after the request; None: no such event."""
    due_at: datetime | None = None
    """When the event is due now, or would have been."""

    @property
    def done(self) -> bool:
        """Whether the event is changed as requested."""
        return self.result is ChangeResult.DONE

    def __bool__(self) -> bool:
        return self.done


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayedEvent:
    """An event that waits for its due time."""

    event_id: UUID
    event_type: str
    topic: str
    key: str | None
    biz_key: str | None
    created_at: datetime
    due_at: datetime
    attempts: int
    """How often the broker has refused it; `due_at` is then the time of the next attempt."""
    left: timedelta
    """Time until it is due, by the database's clock; negative if it is due and no relay has claimed
    it."""


class DelayedEventStore(Protocol):
    """Changes delayed events over the caller's connection, in the transaction that is open there.

    A change waits for the end of another change of the same event. The audit log records it under
    `who`.
    """

    def waiting(
        self,
        connection: Connection,
        *,
        limit: int,
        event_type: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        biz_key: str | None = None,
    ) -> Sequence[DelayedEvent]:
        """Return up to `limit` delayed events, the next due first."""
        ...

    def cancel(
        self, connection: Connection, event: EventRef, *, who: str, reason: str | None = None
    ) -> Change:
        """Discard an event that is not due yet; the audit log keeps the reason."""
        ...

    def reschedule(self, connection: Connection, event: EventRef, due: Due, *, who: str) -> Change:
        """Change the due time of an event that is not due yet."""
        ...
