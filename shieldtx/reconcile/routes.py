"""The routes: which consumer groups should receive which events of which services."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import (
    NO_GROUP,
    Expectation,
    ExpectedGroup,
    Member,
    Received,
    Route,
    Sent,
    Stream,
)


def expectation_of(
    members: Sequence[Member], *, sent: Collection[Sent], received: Collection[Received]
) -> Expectation:
    """Return, for every event type, the groups that should have received it and those that have.

    Where a service names no groups of a kind, past receipts count: a group should receive all
    events of the types that it has received before.

    A rollback is meant for the service whose event it takes back. If no group of that service
    should receive the type, and none has received it, the rollback is expected of `NO_GROUP` and
    counts as missing. A rollback is also meant for groups of other services that handle and
    compensate such events; such groups need not exist.
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
        obstacles=(
            *_unreceived(members, sent, routes.values()),
            *_unassigned(members, sent, known, routes.values()),
        ),
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
        declared = (route for group in groups for route in _declared(member, group, arriving))
        past = (seen for seen in mine if not member.is_former(seen))
        awaited = list(declared if groups else _seen(past, expected=True))
        yield from awaited
        if kind is TxKind.ROLLBACK:
            yield from _undeclared(member, arriving, awaited, mine)


def _declared(member: Member, group: ExpectedGroup, arriving: Iterable[Sent]) -> Iterable[Route]:
    for what in arriving:
        if group.takes(what, service=member.name):
            yield _route(what, member, group.name, max_attempts=group.max_attempts)


def _of_others(
    member: Member, sent: Iterable[Sent], received: Collection[Received]
) -> Iterable[Route]:
    """Yield routes for rollbacks of other services' events, to the groups that compensate them.

    Past receipts count if the service declares no group that compensates anything. Then the group
    must also handle the events. Otherwise it may have received the rollbacks because it compensates
    its own service's events of the type. A former group should receive no more events, but still
    the rollbacks of events that it has applied.
    """
    declared = [group for group in member.groups or () if group.kind is TxKind.ROLLBACK]
    for what in sent:
        writer = what.causation_source
        if what.kind is TxKind.COMMIT or writer is None or writer == member.name:
            continue
        if declared:
            groups = (g.name for g in declared if g.of_others and g.names(what, writer))
            yield from (_route(what, member, group) for group in groups)
            continue
        for seen in received:
            if (
                seen.downstream == member.name
                and seen.causation_source == writer
                and (seen.topic, seen.event_type) == (what.topic, what.event_type)
                and _handles(member, seen, writer, received)
            ):
                yield replace(_route(what, member, seen.group), if_applied=member.is_former(seen))


def _handles(member: Member, rollback: Received, writer: str, received: Iterable[Received]) -> bool:
    """Return whether the group that received a rollback should have received the event, or has."""
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


def _undeclared(
    member: Member, arriving: Iterable[Sent], awaited: Iterable[Route], mine: Collection[Received]
) -> Iterable[Route]:
    """Yield routes for rollbacks of a service's events that no group is known to compensate.

    Each rollback should have reached the one group that has received such rollbacks anyway, or else
    any group. With several such groups, the right one is not known: see `_unassigned`.
    """
    known = {(route.stream.upstream, route.topic, route.event_type) for route in awaited}
    for what in arriving:
        if (what.upstream, what.topic, what.event_type) not in known:
            groups = _groups_with(what, mine) or {NO_GROUP}
            if len(groups) == 1:
                yield _route(what, member, *groups)


def _groups_with(what: Sent, received: Iterable[Received]) -> set[str]:
    type_ = what.upstream, what.kind, what.topic, what.event_type
    return {s.group for s in received if (s.source, s.kind, s.topic, s.event_type) == type_}


def _unassigned(
    members: Iterable[Member],
    sent: Collection[Sent],
    received: Collection[Received],
    routes: Iterable[Route],
) -> Iterable[tuple[str, str]]:
    """Yield rollback types that several groups have received and none is expected to receive."""
    expected = {(r.stream, r.topic, r.event_type, r.causation_source) for r in routes if r.expected}
    for member in members:
        back = [what for what in sent if _may_go_to(member.name, what, TxKind.ROLLBACK)]
        mine = [s for s in received if s.downstream == member.name == s.causation_source]
        for what in sorted(back, key=repr):
            stream = Stream(kind=what.kind, upstream=what.upstream, downstream=member.name)
            if (stream, what.topic, what.event_type, member.name) not in expected:
                groups = ", ".join(sorted(_groups_with(what, mine)))
                yield (
                    what.upstream,
                    (
                        f"the groups {groups} of {member.name} have received rollbacks of "
                        f"{what.event_type} ({what.topic}) from {what.upstream}, and none of them "
                        "is named to compensate the type: name it in `compensates` of the group "
                        "that should receive all of them"
                    ),
                )


def unreceived(
    members: Iterable[Member], sent: Collection[Sent], routes: Collection[Route]
) -> Iterator[Sent]:
    """Yield the event types that no group is expected to receive, and that are not for others.

    Some types need no group: if no event of a type was sent, none is missing.
    """
    expected = [route for route in routes if route.expected]
    routed = {(r.stream.upstream, r.stream.kind, r.topic, r.event_type) for r in expected}
    others = {member.name: member.others for member in members}
    for what in sorted(sent, key=repr):
        is_theirs = what.kind is TxKind.COMMIT and what.upstream in others
        is_routed = (what.upstream, what.kind, what.topic, what.event_type) in routed
        if not is_theirs or is_routed:
            continue
        if not others[what.upstream].covers(what.topic, what.event_type):
            yield what


def _unreceived(
    members: Collection[Member], sent: Collection[Sent], routes: Collection[Route]
) -> Iterable[tuple[str, str]]:
    found = {
        (what.upstream, what.topic, what.event_type) for what in unreceived(members, sent, routes)
    }
    for member in members:
        lost = [
            event_type if topic == event_type else f"{event_type} ({topic})"
            for upstream, topic, event_type in sorted(found)
            if upstream == member.name
        ]
        if lost:
            yield (
                member.name,
                (
                    f"no group is expected to receive {', '.join(lost)} of {member.name}: "
                    "name the groups that should, or list the types in `for_others`"
                ),
            )


def expected_by_the_past(
    routes: Iterable[Route], sent: Collection[Sent], past: Collection[Received]
) -> Iterator[str]:
    """Yield sentences for groups that should receive events only because of earlier runs.

    `past` has the receipts of which the inboxes have no rows any more.
    """
    types = {(s.upstream, s.kind, s.topic, s.event_type) for s in sent}
    gone = {(s.downstream, s.group, s.source, s.kind, s.topic, s.event_type) for s in past}
    found: dict[tuple[str, str], set[str]] = {}
    for route in routes:
        type_ = route.stream.upstream, route.stream.kind, route.topic, route.event_type
        who = route.stream.downstream, route.group
        is_expected = route.expected and not route.if_applied
        if is_expected and type_ in types and (*who, *type_) in gone:
            found.setdefault(who, set()).add(f"{route.event_type} ({route.topic})")
    for (service, group), names in sorted(found.items()):
        yield (
            f"the inbox of group {group} of {service} has nothing of {', '.join(sorted(names))} "
            "left: the group should receive it because an earlier run has seen that it did. If it "
            f"should not any more, list it in `former_groups` of {service}, or name the groups"
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
