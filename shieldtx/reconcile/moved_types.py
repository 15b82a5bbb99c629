"""Types of events that are sent on another topic than the one on which a group has received them.

By the past, a group should receive the types that it has received before, each on its topic. When
the service sends a type on another topic from now on, and the group does not read that, nothing it
lacks would be missed.
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
"""For so long, processes of a service may send on both topics: while they are replaced."""
QUIET: Final = timedelta(days=1)
"""A topic on which nothing of a type was sent for so long may have been left, however long both
were used: a new release may be rolled out over days."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Followed:
    """A type that a group has received on some topics of several on which others receive it."""

    upstream: str
    event_type: str
    service: str
    group: str
    topics: tuple[str, ...]
    """Those on which the group has received it."""
    others: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SentBetween:
    """When the first and the last of the events of a type on a topic were sent that are kept."""

    first: datetime
    last: datetime


def on_several_topics(members: Collection[Member], routes: Iterable[Route]) -> list[Followed]:
    """Return the types that may have moved, of the groups of which the past says what they receive.

    A service may send a type on several topics for good, for different groups. That is so where the
    configuration says that they are parallel. Otherwise its outbox is to be asked.
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
    """Return on which topics, of `every` one of a type, a group may lack what has moved there."""
    others = frozenset(every).difference(topics)
    return others if parallel.isdisjoint(topics) else others - parallel


def moved_types(
    followed: Sequence[Followed],
    sent: Mapping[tuple[str, str, str], SentBetween],
    *,
    before: datetime,
) -> Iterator[str]:
    """Say in sentences which types have moved to a topic that a group has not received from.

    `sent`, by service, type and topic, is of what is kept. What was sent after `before` may be on
    its way. Each topic of a group is judged by itself: another one may go on, as of another
    country. Where nothing is kept of any of them, all of them have been left.
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
    """Return when the type was sent, by topic, of those of which anything is kept."""
    found = ((topic, sent.get((each.upstream, each.event_type, topic))) for topic in topics)
    return {topic: between for topic, between in found if between is not None}


def _left_for(new: SentBetween, own: Mapping[str, SentBetween], *, before: datetime) -> list[str]:
    """Return which of its `own` topics a type may have left for a new one.

    It has left a topic if it was sent on the new one since, and the last time on the topic left is
    more than a day before `before`, or not an hour behind the first time on the new one. While it
    goes on on others of its own, a topic may just be idle, and the new one be there for another
    group all along: then the topic left has to be the older one of the two.
    """
    latest = min(new.last, max(new.first + OVERLAP, before - QUIET), before)
    left = [topic for topic, between in own.items() if between.last < latest]
    if len(left) < len(own):
        return [topic for topic in left if own[topic].first < new.first]
    return left


def _sentence(each: Followed, left: Sequence[str], moved: Sequence[str]) -> str:
    """Say that a type has moved, and what to do if it has, and if it has not."""
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
