"""The trace of an event: what a service knows of it, and what is told of its life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind

MAX_TRACED_EVENTS = 100
"""How many events a trace holds; what follows from them is left out then, and said to be."""

MAX_TRACED_ATTEMPTS = 200
"""How many attempts of an event are read from one service's trace: the latest."""


# --- what a service knows of an event ---------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Which event it is; never what is in it."""

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
    """When it was written, or received."""
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
    """An attempt that the service's tracer has kept."""

    group: str | None
    attempt: int
    outcome: str
    at: datetime
    """When it ended, by the database's clock."""
    waited: float | None
    took: float | None
    """Seconds; see `tracing.Entry`."""
    partition: int | None
    offset: int | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that a service knows of an event."""

    written: KnownRow | None = None
    received: Sequence[KnownRow] = ()
    marks: Sequence[TracedAttempt] = ()
    """In the order in which they were kept."""
    caused: Sequence[UUID] = ()
    """Its rollbacks, and the events that its handlers wrote here."""


class TraceReader(Protocol):
    """What one service knows."""

    def facts(self, event_id: UUID) -> Facts:
        """Return all it knows of an event."""
        ...


# --- what is told of it -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something that happened to an event on a hop."""

    what: str
    """WRITTEN, CLAIMED, PUBLISHED, NOT_PUBLISHED, RECEIVED, STARTED, a verdict, or a status."""
    at: datetime | None = None
    """None: nobody knows, or it is still to come."""
    after: timedelta | None = None
    """Since what came before it; below 0 where the clocks of two databases differ by more."""
    attempt: int | None = None
    outcome: str = ""
    partition: int | None = None
    offset: int | None = None
    took: float | None = None
    """Seconds."""
    reason: str = ""
    until: datetime | None = None
    """Of what waits: for when."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """An event in the outbox of a service or, with a `group`, in its inbox."""

    service: str
    group: str | None
    status: str
    attempts: int
    steps: Sequence[Step]
    unknown: Sequence[str] = ()
    """What is not known here, and why."""
    caused: Sequence[EventTimeline] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTimeline:
    """An event from its writing to its effects, and the events that followed from it."""

    identity: Identity
    hops: Sequence[Hop]
    unknown: Sequence[str] = ()
    caused: Sequence[EventTimeline] = ()
    """Where it is not known which hop has caused them."""
