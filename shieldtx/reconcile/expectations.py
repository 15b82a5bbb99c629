"""The services and groups of a run, what they sent and received, and which routes events take."""

from __future__ import annotations

from dataclasses import dataclass

from shieldtx.domain.states import TxKind

NOBODY = "(no group)"
"""Stands for the group that should compensate rollbacks which no known group has ever received."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGroup:
    """A consumer group of a service and events that it should receive, each of them once."""

    name: str
    kind: TxKind = TxKind.COMMIT
    """COMMIT: it handles events of others. ROLLBACK: it compensates events."""
    of_others: bool = False
    """Of kind ROLLBACK: what it compensates are events of other services, which it handles.
    Otherwise they are its own service's."""
    topics: tuple[str, ...] = ()
    """Logical topics; empty: any, of other services."""
    event_types: tuple[str, ...] = ()
    """Empty: any."""
    upstreams: tuple[str, ...] = ()
    """Services whose events they are; empty: any. It does not apply to rollbacks of its own
    service's events: any service may send these."""
    max_attempts: int | None = None
    """The limit of its handlers' RetryPolicy; None: not known, and not checked."""
    may_be_unused: tuple[str, ...] = ()
    """Of the names above, those of which no event need have been sent: all others are taken for
    mistyped as long as none was."""

    def takes(self, what: Sent, *, service: str) -> bool:
        """Whether the group, which is of this service, should receive such events."""
        is_commit = what.kind is TxKind.COMMIT
        if is_commit and what.upstream == service and not self.topics:
            return False
        # The upstream of a rollback is the service that gave the event up, not its writer.
        return self.names(what, what.upstream if is_commit else None)

    def names(self, what: Sent | Received, writer: str | None) -> bool:
        """Whether events of a type, by this service, are among those that the group names.

        None: whichever service has written them.
        """
        return (
            (not self.topics or what.topic in self.topics)
            and (not self.event_types or what.event_type in self.event_types)
            and (writer is None or not self.upstreams or writer in self.upstreams)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """The events of one kind that go from one service's outbox to the groups of another."""

    kind: TxKind
    upstream: str
    downstream: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """That a service wrote events of a type, or took back such of another service."""

    upstream: str
    kind: TxKind
    topic: str
    event_type: str
    causation_source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """That a group of a service has received events of a type."""

    downstream: str
    group: str
    source: str
    kind: TxKind
    topic: str
    event_type: str
    causation_source: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FormerGroup:
    """A group that should not receive events any more, or not those of one type."""

    name: str
    event_type: str | None = None
    """None: whatever type it has received."""

    def __str__(self) -> str:
        """Return it as a configuration names it."""
        return self.name if self.event_type is None else f"{self.name}: {self.event_type}"

    def has_had(self, seen: Received) -> bool:
        """Whether what was received is of the group, and of the type."""
        return seen.group == self.name and self.event_type in {None, seen.event_type}


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One type of events on its way to one group."""

    stream: Stream
    group: str
    topic: str
    event_type: str
    expected: bool
    """Each such event should arrive. Otherwise some have arrived, and nobody says that all should.
    """
    max_attempts: int | None = None
    causation_source: str | None = None
    """Of rollbacks: the service whose events they take back."""
    if_applied: bool = False
    """Of rollbacks, to a former group: those alone should arrive that take back an event which the
    group has applied, or has open, and has not compensated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """All routes of a run."""

    routes: tuple[Route, ...]
    obstacles: tuple[tuple[str, str], ...] = ()
    """Upstream, and why some of what it sent cannot be judged."""
    left_out: tuple[str, ...] = ()
    """What was seen and is nobody's to compare, in sentences."""
    remarks: tuple[str, ...] = ()
    """What is expected by earlier runs alone, in sentences."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Those in which something is expected or has arrived."""
        return tuple(dict.fromkeys(route.stream for route in self.routes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Others:
    """What a service writes for services that take no part in a reconciliation."""

    topics: tuple[str, ...] = ()
    """Logical topics, with all that is on them."""
    event_types: tuple[str, ...] = ()
    """On whatever topic."""

    @classmethod
    def named(cls, *names: str) -> Others:
        """Return what names of a file mean, each of which may be that of a topic or of a type."""
        return cls(topics=names, event_types=names)

    def covers(self, topic: str, event_type: str) -> bool:
        """Whether events of a type on a topic are for such services."""
        return topic in self.topics or event_type in self.event_types


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A service as far as expectations go."""

    name: str
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or none of a kind: what its groups have received says what they should receive."""
    others: Others = Others()
    former_groups: tuple[FormerGroup, ...] = ()
    """Those of which the past does not say any more what they should receive."""
    parallel_topics: tuple[str, ...] = ()
    """Those on which it sends the same types for good, for different groups."""

    def is_former(self, seen: Received) -> bool:
        """Whether what a group of the service has received says nothing about what it should."""
        return any(former.has_had(seen) for former in self.former_groups)
