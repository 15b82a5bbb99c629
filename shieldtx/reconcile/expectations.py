"""The services and groups of a run, the events sent and received, and the routes of the events."""

from __future__ import annotations

from dataclasses import dataclass

from shieldtx.domain.states import TxKind

NO_GROUP = "(no group)"
"""Stands for the group that should compensate rollbacks which no known group has ever received."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGroup:
    """A consumer group of a service, and events that it should receive, each of them once."""

    name: str
    kind: TxKind = TxKind.COMMIT
    """COMMIT: the group handles events of others. ROLLBACK: the group compensates events."""
    of_others: bool = False
    """Of kind ROLLBACK: the group compensates events of other services, which it handles. Otherwise
    it compensates events of its own service."""
    topics: tuple[str, ...] = ()
    """Logical topics; empty: any topic of other services."""
    event_types: tuple[str, ...] = ()
    """Empty: any type."""
    upstreams: tuple[str, ...] = ()
    """The services that write the events; empty: any. Not applied to rollbacks of events of the
    group's own service: any service may send these rollbacks."""
    max_attempts: int | None = None
    """The limit of the handlers' RetryPolicy; None: not known, and not checked."""
    may_be_unused: tuple[str, ...] = ()
    """Names of the fields above for which no event need have been sent. All other names count as
    mistyped until an event was sent."""

    def takes(self, what: Sent, *, service: str) -> bool:
        """Return whether the group, which belongs to this service, should receive such events."""
        is_commit = what.kind is TxKind.COMMIT
        if is_commit and what.upstream == service and not self.topics:
            return False
        # The upstream of a rollback is the service that gave the event up, not its writer.
        return self.names(what, what.upstream if is_commit else None)

    def names(self, what: Sent | Received, writer: str | None) -> bool:
        """Return whether the group names events of this type by this writer.

        None: any writer.
        """
        return (
            (not self.topics or what.topic in self.topics)
            and (not self.event_types or what.event_type in self.event_types)
            and (writer is None or not self.upstreams or writer in self.upstreams)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The events of one kind from one service's outbox to the groups of another service."""

    kind: TxKind
    upstream: str
    downstream: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A service wrote events of a type, or took back such events of another service."""

    upstream: str
    kind: TxKind
    topic: str
    event_type: str
    causation_source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A group of a service has received events of a type."""

    downstream: str
    group: str
    source: str
    kind: TxKind
    topic: str
    event_type: str
    causation_source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerGroup:
    """A group that should no longer receive events, or no longer events of one type."""

    name: str
    event_type: str | None = None
    """None: any type that the group has received."""

    def __str__(self) -> str:
        """Return the group in the notation of the configuration."""
        return self.name if self.event_type is None else f"{self.name}: {self.event_type}"

    def has_had(self, seen: Received) -> bool:
        """Return whether the received events match the group and the type."""
        return seen.group == self.name and self.event_type in {None, seen.event_type}


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The path of one event type to one group."""

    stream: Stream
    group: str
    topic: str
    event_type: str
    expected: bool
    """Each such event should arrive. Otherwise some events have arrived, and nothing requires all.
    """
    max_attempts: int | None = None
    causation_source: str | None = None
    """Of rollbacks: the service whose events the rollbacks take back."""
    if_applied: bool = False
    """Of rollbacks, to a former group: a rollback should arrive only if the group has applied its
    event or has it open, and has not compensated it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """All routes of a run."""

    routes: tuple[Route, ...]
    obstacles: tuple[tuple[str, str], ...] = ()
    """Upstream, and why some of its events cannot be judged."""
    left_out: tuple[str, ...] = ()
    """Sentences about events that were found and that no service of the run should receive."""
    remarks: tuple[str, ...] = ()
    """Sentences about events that only earlier runs lead to expect."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams in which events are expected or have arrived."""
        return tuple(dict.fromkeys(route.stream for route in self.routes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Others:
    """The events of a service for services that take no part in a reconciliation."""

    topics: tuple[str, ...] = ()
    """Logical topics, with all their events."""
    event_types: tuple[str, ...] = ()
    """Types, on any topic."""

    @classmethod
    def named(cls, *names: str) -> Others:
        """Return the topics and types of a list of names, each of which may be either."""
        return cls(topics=names, event_types=names)

    def covers(self, topic: str, event_type: str) -> bool:
        """Return whether events of a type on a topic are for such services."""
        return topic in self.topics or event_type in self.event_types


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A service as far as expectations need it."""

    name: str
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or no group of a kind: past receipts of the groups define what they should receive."""
    others: Others = Others()
    former_groups: tuple[FormerGroup, ...] = ()
    """Groups whose past receipts no longer define what they should receive."""
    parallel_topics: tuple[str, ...] = ()
    """Topics on which the service permanently sends the same types, for different groups."""

    def is_former(self, seen: Received) -> bool:
        """Return whether this receipt no longer defines what its group should receive."""
        return any(former.has_had(seen) for former in self.former_groups)
