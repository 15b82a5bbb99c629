"""Which consumer groups should receive which events of which services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from shieldtx.domain.states import TxKind

NOBODY = "(no group)"
"""Stands for the group that should compensate rollbacks which no known group has ever received."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGroup:
    """A consumer group of a service and events that it should receive, each of them once."""

    name: str
    kind: TxKind = TxKind.COMMIT
    """COMMIT: it handles events of others. ROLLBACK: it compensates its own service's events."""
    topics: tuple[str, ...] = ()
    """Logical topics; empty: any, of other services."""
    event_types: tuple[str, ...] = ()
    """Empty: any."""
    upstreams: tuple[str, ...] = ()
    """Services whose events they are; empty: any. Of rollbacks, it is its own service's events
    that are taken back, whoever does it."""
    max_attempts: int | None = None
    """The limit of its handlers' RetryPolicy; None: not known, and not checked."""
    may_be_unused: tuple[str, ...] = ()
    """Of the names above, those of which no event need have been sent: all others are taken for
    mistyped as long as none was."""

    def takes(self, what: Sent, *, service: str) -> bool:
        """Whether the group, which is of this service, should receive such events."""
        own = what.kind is TxKind.COMMIT and what.upstream == service
        return (
            (what.topic in self.topics if self.topics or own else True)
            and (not self.event_types or what.event_type in self.event_types)
            # Of a rollback, that is whoever gave the event up: not whose event it is.
            and (
                what.kind is TxKind.ROLLBACK
                or not self.upstreams
                or what.upstream in self.upstreams
            )
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """All routes of a run."""

    routes: tuple[Route, ...]
    obstacles: tuple[tuple[str, str], ...] = ()
    """Upstream, and why some of what it sent cannot be judged."""
    left_out: tuple[str, ...] = ()
    """What was seen and is nobody's to compare, in sentences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A service as far as expectations go."""

    name: str
    groups: tuple[ExpectedGroup, ...] | None = None
    """None, or none of a kind: what its groups have received says what they should receive."""
    others: tuple[str, ...] = ()
    """Logical topics that it writes for services which take no part in the reconciliation."""


def expectation_of(
    members: Sequence[Member], *, sent: Collection[Sent], received: Collection[Received]
) -> Expectation:
    """Say for every type of events who should have received it, and who has.

    Where a service names no groups of a kind, its past speaks: a group should receive all events of
    the types that it has received before. A rollback is meant for the service whose event it takes
    back and for nobody else: one of a type that no group of it has received is expected of NOBODY,
    so that it counts as missing.
    """
    names = {member.name for member in members}
    known = [seen for seen in received if seen.source in names and _is_addressed(seen)]
    routes: dict[tuple[Stream, str, str, str], Route] = {}
    for route in (
        *_seen(known, expected=False),
        *(route for member in members for route in _wanted(member, sent, known)),
    ):
        routes[route.stream, route.group, route.topic, route.event_type] = route
    return Expectation(
        routes=tuple(routes[key] for key in sorted(routes, key=_order)),
        obstacles=tuple(_unreceived(members, sent, routes.values())),
        left_out=(*_foreign(names, received), *_taken_back_elsewhere(names, sent)),
    )


def _wanted(
    member: Member, sent: Collection[Sent], received: Collection[Received]
) -> Iterable[Route]:
    for kind in TxKind:
        arriving = [what for what in sent if _may_go_to(member.name, what, kind)]
        mine = [s for s in received if s.downstream == member.name and s.kind is kind]
        groups = [group for group in member.groups or () if group.kind is kind]
        awaited = [route for group in groups for route in _declared(member, group, arriving)]
        yield from awaited
        if not groups:
            yield from _seen(mine, expected=True)
        if kind is TxKind.ROLLBACK:
            yield from _orphans(member, arriving, [*awaited, *_seen(mine, expected=False)])


def _declared(member: Member, group: ExpectedGroup, arriving: Iterable[Sent]) -> Iterable[Route]:
    for what in arriving:
        if group.takes(what, service=member.name):
            yield Route(
                stream=Stream(kind=what.kind, upstream=what.upstream, downstream=member.name),
                group=group.name,
                topic=what.topic,
                event_type=what.event_type,
                expected=True,
                max_attempts=group.max_attempts,
            )


def _seen(received: Iterable[Received], *, expected: bool) -> Iterable[Route]:
    for seen in received:
        yield Route(
            stream=Stream(kind=seen.kind, upstream=seen.source, downstream=seen.downstream),
            group=seen.group,
            topic=seen.topic,
            event_type=seen.event_type,
            expected=expected,
        )


def _orphans(member: Member, arriving: Iterable[Sent], routes: Iterable[Route]) -> Iterable[Route]:
    known = {(route.stream.upstream, route.topic, route.event_type) for route in routes}
    for what in arriving:
        if (what.upstream, what.topic, what.event_type) not in known:
            yield Route(
                stream=Stream(kind=what.kind, upstream=what.upstream, downstream=member.name),
                group=NOBODY,
                topic=what.topic,
                event_type=what.event_type,
                expected=True,
            )


def _unreceived(
    members: Iterable[Member], sent: Iterable[Sent], routes: Iterable[Route]
) -> Iterable[tuple[str, str]]:
    awaited = {(r.stream.upstream, r.stream.kind, r.topic) for r in routes if r.expected}
    others = {member.name: set(member.others) for member in members}
    lost: dict[str, set[str]] = defaultdict(set)
    for what in sent:
        is_ours = what.kind is TxKind.COMMIT and what.topic not in others[what.upstream]
        if is_ours and (what.upstream, what.kind, what.topic) not in awaited:
            lost[what.upstream].add(what.topic)
    for upstream, topics in sorted(lost.items()):
        named = ", ".join(sorted(topics))
        yield (
            upstream,
            (
                f"no group is expected to receive {named} of {upstream}: name the groups that "
                "should, or say that the topic is for others"
            ),
        )


def _foreign(names: Collection[str], received: Iterable[Received]) -> Iterable[str]:
    found = sorted({(s.downstream, s.source) for s in received if s.source not in names})
    for downstream, source in found:
        yield f"{downstream} has received events of {source}, which is none of these services"


def _taken_back_elsewhere(names: Collection[str], sent: Iterable[Sent]) -> Iterable[str]:
    found = {
        (what.upstream, what.causation_source or "a service that they do not name")
        for what in sent
        if what.kind is TxKind.ROLLBACK and what.causation_source not in names
    }
    for upstream, source in sorted(found):
        yield f"{upstream} has taken back events of {source}, which is none of these services"


def _may_go_to(name: str, what: Sent, kind: TxKind) -> bool:
    return what.kind is kind and (kind is TxKind.COMMIT or what.causation_source == name)


def _is_addressed(seen: Received) -> bool:
    """Whether it came to the service that it was meant for."""
    return seen.kind is TxKind.COMMIT or seen.causation_source == seen.downstream


def _order(key: tuple[Stream, str, str, str]) -> tuple[str, ...]:
    stream, *rest = key
    return (stream.kind, stream.upstream, stream.downstream, *rest)
