"""Event types that are sent on another topic than the one on which a group has received them.

By past receipts, a group should receive the types that it has received before, each on its topic.
If the service now sends a type on another topic, which the group does not read, the comparison
would not miss the events that the group lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Route
from shieldtx.reconcile.observed import undeclared_kinds

OVERLAP: Final = timedelta(hours=1)
"""The time for which processes of a service may send on both topics, while they are replaced."""
QUIET: Final = timedelta(days=1)
"""A type may have left a topic that has had none of its events for this time, however long both
topics were used: the rollout of a release may take days."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Followed:
    """A type that a group has received on some topics, and others on further topics."""

    upstream: str
    event_type: str
    service: str
    group: str
    topics: tuple[str, ...]
    """The topics on which the group has received the type."""
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SentBetween:
    """When the first and the last kept event of a type on a topic were sent."""

    first: datetime
    last: datetime


def on_several_topics(members: Collection[Member], routes: Iterable[Route]) -> list[Followed]:
    """Return the types that may have moved, for groups with expectations from past receipts.

    A service may permanently send a type on several topics, for different groups. The configuration
    lists such topics as parallel. For other topics, the caller must query the outbox.
    """
    by_past = {member.name for member in members if TxKind.COMMIT in undeclared_kinds(member)}
    everywhere: dict[tuple[str, str], set[str]] = {}
    of_groups: dict[tuple[str, str, str, str], set[str]] = {}
    for route in routes:
        if route.stream.kind is not TxKind.COMMIT:
            continue
        type_ = route.stream.upstream, route.event_type
        everywhere.setdefault(type_, set()).add(route.topic)
        if route.expected and route.stream.downstream in by_past:
            group = *type_, route.stream.downstream, route.group
            of_groups.setdefault(group, set()).add(route.topic)
    parallel = {member.name: frozenset(member.parallel_topics) for member in members}
    return sorted(
        Followed(
            upstream=upstream,
            event_type=event_type,
            service=service,
            group=group,
            topics=tuple(sorted(topics)),
            others=tuple(sorted(others)),
        )
        for (upstream, event_type, service, group), topics in of_groups.items()
        if (others := _others(everywhere[upstream, event_type], topics, parallel[upstream]))
    )


def _others(
    every: Collection[str], topics: Collection[str], parallel: frozenset[str]
) -> frozenset[str]:
    """Return the topics, out of `every` topic of a type, to which the type may have moved."""
    others = frozenset(every).difference(topics)
    return others if parallel.isdisjoint(topics) else others - parallel


def moved_types(
    followed: Sequence[Followed],
    sent: Mapping[tuple[str, str, str], SentBetween],
    *,
    before: datetime,
) -> Iterator[str]:
    """Return sentences for types that moved to a topic from which a group has received nothing.

    `sent`, by service, type and topic, covers the kept events. Events sent after `before` may be in
    flight. Each topic of a group is judged separately: a type may continue on another topic, as of
    another country. If no events are kept on any of the group's topics, the type has left all of
    them.
    """
    for each in followed:
        own = _sent_on(each.topics, each, sent)
        moved: dict[tuple[str, ...], list[str]] = {}
        for topic, new in _sent_on(each.others, each, sent).items():
            left = _left_for(new, own, before=before) if own else each.topics
            if new.first < before and left:
                moved.setdefault(tuple(left), []).append(topic)
        for topics, others in moved.items():
            yield _sentence(each, topics, others)


def _sent_on(
    topics: Iterable[str], each: Followed, sent: Mapping[tuple[str, str, str], SentBetween]
) -> dict[str, SentBetween]:
    """Return the times of the type by topic, for the topics with kept events."""
    found = ((topic, sent.get((each.upstream, each.event_type, topic))) for topic in topics)
    return {topic: between for topic, between in found if between is not None}


def _left_for(new: SentBetween, own: Mapping[str, SentBetween], *, before: datetime) -> list[str]:
    """Return which of a group's `own` topics a type may have left for a new one.

    The type must have been sent on the new topic since. On the old topic, the last event must be a
    day older than `before`, or less than an hour later than the new topic's first. While other
    topics of the group are still in use, the old topic may only be idle, and the new one may always
    have served another group. Then the old topic must also have the older first event.
    """
    latest = min(new.last, max(new.first + OVERLAP, before - QUIET), before)
    left = [topic for topic, between in own.items() if between.last < latest]
    if len(left) < len(own):
        return [topic for topic in left if own[topic].first < new.first]
    return left


def _sentence(each: Followed, left: Sequence[str], moved: Sequence[str]) -> str:
    """Return the sentence about a moved type, with what to do if it has moved and if it has not."""
    old, new = ", ".join(left), ", ".join(moved)
    return (
        f"{each.event_type} of {each.upstream} is sent on {new} now, and no longer on {old}: "
        f"group {each.group} of {each.service} has received it on {old}, and never on {new}. If "
        f"the type has moved, let the group read {new}; if it is sent on each of these topics "
        f"permanently, for different groups, list {', '.join([*left, *moved])} in "
        f"`parallel_topics` of {each.upstream}; if the group should not receive the type any "
        "more, list "
        f'"{each.group}: {each.event_type}" in `former_groups` of {each.service}; or name the '
        f"groups of {each.service}"
    )
