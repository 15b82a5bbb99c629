"""Which consumer groups should receive which events of which services."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

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
    """Logical topics and event types that it writes for services which take no part in this."""


def expectation_of(
    members: Sequence[Member], *, sent: Collection[Sent], received: Collection[Received]
) -> Expectation:
    """Say for every type of events who should have received it, and who has.

    Where a service names no groups of a kind, its past speaks: a group should receive all events of
    the types that it has received before. A rollback is meant for the service whose event it takes
    back: one of a type that no group of it has received is expected of NOBODY, so that it counts as
    missing. It is also meant for groups of other services that handle such events and compensate
    them; of these, none has to be there.
    """
    names = {member.name for member in members}
    known = [s for s in received if s.source in names and _writer(s, s.source) in names]
    judged = [what for what in sent if _writer(what, what.upstream) in names]
    routes: dict[tuple[Stream, str, str, str, str], Route] = {}
    for route in (
        *_seen(known, expected=False),
        *(route for member in members for route in _wanted(member, sent, known)),
        *(route for member in members for route in _of_others(member, judged, known)),
    ):
        key = route.stream, route.group, route.topic, route.event_type
        routes[*key, route.causation_source or ""] = route
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
        mine = [s for s in mine if kind is TxKind.COMMIT or s.causation_source == member.name]
        groups = [g for g in member.groups or () if g.kind is kind and not g.of_others]
        awaited = [route for group in groups for route in _declared(member, group, arriving)]
        yield from awaited
        if not groups:
            yield from _seen(mine, expected=True)
        if kind is TxKind.ROLLBACK:
            yield from _orphans(member, arriving, [*awaited, *_seen(mine, expected=False)])


def _declared(member: Member, group: ExpectedGroup, arriving: Iterable[Sent]) -> Iterable[Route]:
    for what in arriving:
        if group.takes(what, service=member.name):
            yield _route(what, member, group.name, max_attempts=group.max_attempts)


def _of_others(
    member: Member, sent: Iterable[Sent], received: Collection[Received]
) -> Iterable[Route]:
    """Rollbacks of other services' events, for the groups of a service that compensate these.

    The past speaks where the service declares no group that compensates anything. By the past, a
    group has to handle the events as well: one that has not may have received rollbacks because it
    compensates its own service's events of the type.
    """
    declared = [group for group in member.groups or () if group.kind is TxKind.ROLLBACK]
    for what in sent:
        writer = what.causation_source
        if what.kind is TxKind.COMMIT or writer is None or writer == member.name:
            continue
        groups = [g.name for g in declared if g.of_others and g.names(what, writer)]
        if not declared:
            groups = sorted(
                {
                    seen.group
                    for seen in received
                    if seen.downstream == member.name
                    and seen.causation_source == writer
                    and (seen.topic, seen.event_type) == (what.topic, what.event_type)
                    and _handles(member, seen, writer, received)
                }
            )
        yield from (_route(what, member, group) for group in groups)


def _handles(member: Member, rollback: Received, writer: str, received: Iterable[Received]) -> bool:
    """Whether the group that received a rollback should have received the event, or has."""
    declared = [group for group in member.groups or () if group.kind is TxKind.COMMIT]
    if declared:
        own = [group for group in declared if group.name == rollback.group]
        return any(group.names(rollback, writer) for group in own)
    event = replace(rollback, kind=TxKind.COMMIT, source=writer, causation_source=None)
    return event in received


def _route(what: Sent, member: Member, group: str, *, max_attempts: int | None = None) -> Route:
    return Route(
        stream=Stream(kind=what.kind, upstream=what.upstream, downstream=member.name),
        group=group,
        topic=what.topic,
        event_type=what.event_type,
        expected=True,
        max_attempts=max_attempts,
        causation_source=what.causation_source,
    )


def _seen(received: Iterable[Received], *, expected: bool) -> Iterable[Route]:
    for seen in received:
        yield Route(
            stream=Stream(kind=seen.kind, upstream=seen.source, downstream=seen.downstream),
            group=seen.group,
            topic=seen.topic,
            event_type=seen.event_type,
            expected=expected,
            causation_source=seen.causation_source,
        )


def _orphans(member: Member, arriving: Iterable[Sent], routes: Iterable[Route]) -> Iterable[Route]:
    known = {(route.stream.upstream, route.topic, route.event_type) for route in routes}
    for what in arriving:
        if (what.upstream, what.topic, what.event_type) not in known:
            yield _route(what, member, NOBODY)


def _unreceived(
    members: Iterable[Member], sent: Collection[Sent], routes: Iterable[Route]
) -> Iterable[tuple[str, str]]:
    expected = [route for route in routes if route.expected]
    for member in members:
        of = member.name, TxKind.COMMIT
        written = {(s.topic, s.event_type) for s in sent if (s.upstream, s.kind) == of}
        routed = (r for r in expected if (r.stream.upstream, r.stream.kind) == of)
        lost = [
            event_type if topic == event_type else f"{event_type} ({topic})"
            for topic, event_type in sorted(written - {(r.topic, r.event_type) for r in routed})
            if not {topic, event_type} & {*member.others}
        ]
        if lost:
            yield (
                member.name,
                (
                    f"no group is expected to receive {', '.join(lost)} of {member.name}: "
                    "name the groups that should, or list the types in `for_others`"
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


def _writer(what: Sent | Received, by: str) -> str | None:
    """Return the service that wrote an event, or the event that a rollback takes back."""
    return by if what.kind is TxKind.COMMIT else what.causation_source


def _order(key: tuple[Stream, str, str, str, str]) -> tuple[str, ...]:
    stream, *rest = key
    return (stream.kind, stream.upstream, stream.downstream, *rest)
