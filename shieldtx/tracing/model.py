"""The timeline of an event: its hops through services, and the steps of each hop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shieldtx.ports.tracing import (
    Identity,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A step of an event within a hop."""

    what: str
    """WRITTEN, CLAIMED, PUBLISHED, NOT_PUBLISHED, RECEIVED, STARTED, an outcome, or a status."""
    at: datetime | None = None
    """None: unknown, or in the future."""
    after: timedelta | None = None
    """Time since the step before it; below 0 where the clocks of two databases differ by more."""
    attempt: int | None = None
    outcome: str = ""
    partition: int | None = None
    offset: int | None = None
    took: float | None = None
    """Seconds."""
    reason: str = ""
    until: datetime | None = None
    """When a waiting step ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """An event in the outbox of a service or, with a `group`, in its inbox."""

    service: str
    group: str | None
    status: str
    attempts: int
    steps: Sequence[Step]
    unknown: Sequence[str] = ()
    """Facts that are unknown here, with the reason."""
    caused: Sequence[EventTimeline] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EventTimeline:
    """An event from its writing to its effects, and the events that it caused."""

    identity: Identity
    hops: Sequence[Hop]
    unknown: Sequence[str] = ()
    caused: Sequence[EventTimeline] = ()
    """Caused events for which the causing hop is unknown."""
