"""Events that wait for a time of their own, and what becomes of a wish to change one."""

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
    """Names an event by its type and business key, which no other event of the outbox has."""

    event_type: str
    biz_key: str


EventRef: TypeAlias = UUID | BizKey
"""An event, by its id or by its business key."""


class ChangeResult(StrEnum):
    """What became of a wish to cancel or reschedule an event."""

    DONE = "done"
    """It is as it was wished; for good when the caller's transaction commits."""

    UNKNOWN = "unknown"
    """The outbox has no such event: never written, not committed yet, or purged."""

    NOT_DELAYED = "not delayed"
    """It waits for something else than a time that was chosen: its turn, a check-back."""

    DUE = "due"
    """Its time has come, and a relay may take it at any moment."""

    UNCONFIRMED = "unconfirmed"
    """It waits for its next attempt, and an earlier, unconfirmed one may have delivered it."""

    CLAIMED = "claimed"
    """A relay is publishing it."""

    PUBLISHED = "published"
    """The broker has acknowledged it."""

    CANCELLED = "cancelled"
    """It was cancelled, or discarded, before."""

    FAILED = "failed"
    """It could not be published, and waits for an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What became of a wish to cancel or reschedule an event; true if it is done."""

    result: ChangeResult
    event_id: UUID | None = None
    """None: no such event."""
    status: OutboxStatus | None = None
    """Of the event now; None: no such event."""
    due_at: datetime | None = None
    """When it is due now, or would have been."""

    @property
    def done(self) -> bool:
        """Whether it is as it was wished."""
        return self.result is ChangeResult.DONE

    def __bool__(self) -> bool:
        return self.done


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayedEvent:
    """An event that waits for its time."""

    event_id: UUID
    event_type: str
    topic: str
    key: str | None
    biz_key: str | None
    created_at: datetime
    due_at: datetime
    attempts: int
    """How often the broker has refused it; it is due again then."""
    left: timedelta
    """Until it is due, by the database's clock; below zero where no relay has taken it yet."""


class DelayedEventStore(Protocol):
    """Changes delayed events over the caller's connection, in the transaction that is open there.

    A change waits for another one of the same event to end, and is noted in the audit under `who`.
    """

    def waiting(
        self,
        connection: Connection,
        *,
        limit: int,
        event_type: str | None = None,
        topic: str | None = None,
        key: str | None = None,
    ) -> Sequence[DelayedEvent]:
        """Return up to `limit` delayed events, the next due first."""
        ...

    def cancel(self, connection: Connection, event: EventRef, *, who: str) -> Change:
        """Discard an event that is not due yet."""
        ...

    def reschedule(self, connection: Connection, event: EventRef, due: Due, *, who: str) -> Change:
        """Give an event that is not due yet another time."""
        ...
