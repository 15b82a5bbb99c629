"""The timeline of an event: its hops through services, and the steps on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shieldtx.ports.tracing import (
    Identity,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Something that happened to an event on a hop."""

    what: str
    """WRITTEN, CLAIMED, PUBLISHED, NOT_PUBLISHED, RECEIVED, STARTED, an outcome, or a status."""
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
