"""The port of event traces: what the tables and the trace of a service know of an event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind

MAX_TRACED_EVENTS = 100
"""The maximum number of events in a trace; the trace reports that it leaves out the rest."""

MAX_TRACED_ATTEMPTS = 200
"""The maximum number of attempts of an event that are read from one service's trace: the latest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The identity of an event, without its contents."""

    event_id: UUID
    type: str
    source: str
    topic: str
    kind: TxKind
    operation: str
    key: str | None
    biz_key: str | None
    causation_id: UUID | None
    causation_source: str | None
    traceparent: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRow:
    """A row of the outbox or, with a `group`, of the inbox; all times by the database's clock."""

    identity: Identity
    group: str | None
    status: OutboxStatus | InboxStatus
    attempts: int
    began_at: datetime
    """When the event was written, or received."""
    due_at: datetime
    lease_until: datetime | None
    settled_at: datetime | None
    reason: str
    """The last error."""
    partition: int | None = None
    offset: int | None = None
    compensated_id: UUID | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedAttempt:
    """An attempt that the service's tracer has recorded."""

    group: str | None
    attempt: int
    outcome: str
    at: datetime
    """When it ended, by the database's clock."""
    waited: float | None
    took: float | None
    """Seconds; see `TraceEntry`."""
    partition: int | None
    offset: int | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that a service knows of an event."""

    written: KnownRow | None = None
    received: Sequence[KnownRow] = ()
    marks: Sequence[TracedAttempt] = ()
    """In the order of recording."""
    caused: Sequence[UUID] = ()
    """Its rollbacks, and the events that its handlers wrote here."""


class TraceReader(Protocol):
    """What one service knows."""

    def facts(self, event_id: UUID) -> Facts:
        """Return all that the service knows of an event."""
        ...

    def events_of(self, biz_key: str, *, event_type: str | None = None) -> Sequence[UUID]:
        """Return the ids of the events with a business key, of one type or of any, by time.

        Rollback events are not among them: `facts` names those of an event.
        """
        ...


LONGEST_TRACED_REASON = 500
"""The maximum length of a recorded error, in characters; the tables keep more of the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEntry:
    """One attempt to send an event, or one attempt of a consumer group."""

    event_id: UUID
    group: str | None
    """None: of a relay."""
    attempt: int
    outcome: str
    """The name of a DeliveryOutcome (relay) or of an AttemptOutcome (consumer group)."""
    ended: float
    """When the attempt ended, by the clock of the tracer."""
    waited: float | None = None
    """Seconds between claim and handing over."""
    took: float | None = None
    """Seconds from handing over, or from before the handler, to the end."""
    partition: int | None = None
    offset: int | None = None
    reason: str = ""


class TraceStore(Protocol):
    """Stores trace entries."""

    def write(self, entries: Sequence[TraceEntry], *, clock: Callable[[], float]) -> None:
        """Store entries in a transaction of their own; `clock` is the clock of their `ended`."""
        ...
