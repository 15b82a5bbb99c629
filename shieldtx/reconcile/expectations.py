"""Which consumer groups should receive which events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shieldtx.states import TxKind

NOBODY = "(no group)"
"""Stands for the group that should compensate rollbacks which no known group has ever received."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedGroup:
    """A consumer group and events that it should receive, each of them once."""

    name: str
    kind: TxKind = TxKind.COMMIT
    """COMMIT: a group of the downstream. ROLLBACK: a group of the upstream, which compensates."""
    topics: tuple[str, ...] = ()
    """Logical topics; empty: any."""
    event_types: tuple[str, ...] = ()
    """Empty: any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """That a group has received events of a type."""

    group: str
    topic: str
    event_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """That events of a type were written for the other side."""

    topic: str
    event_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """Who should have received the events of one kind that go from one service to another."""

    groups: tuple[ExpectedGroup, ...]
    names: tuple[str, ...]
    """Of all groups that should have received some or have, expected or not."""
    obstacle: str = ""
    """Why nothing can be expected; empty when something can."""


def expectation_of(
    kind: TxKind,
    chosen: Sequence[ExpectedGroup] | None,
    *,
    sent: Collection[Sent],
    received: Collection[Received],
) -> Expectation:
    """Return the `chosen` groups of this kind, or what the groups' past says where none is chosen.

    Derived from the past, a group should receive all events of the types that it has received
    before. A type of COMMIT events that none has received may be meant for somebody else. A
    rollback is meant for the service whose event it takes back and for nobody else: one of a type
    that no group of it has received is expected of NOBODY, so that it counts as missing.
    """
    groups = [group for group in chosen or () if group.kind is kind]
    obstacle = ""
    if not groups:
        groups = _groups_of_the_past(kind, received)
        if kind is TxKind.ROLLBACK:
            groups += _groups_of_orphans(sent, received)
        elif sent and not groups:
            obstacle = "no group has received any of its events, so name the groups that should"
    names = {group.name for group in groups} | {seen.group for seen in received}
    return Expectation(groups=tuple(groups), names=tuple(sorted(names)), obstacle=obstacle)


def _groups_of_the_past(kind: TxKind, received: Collection[Received]) -> list[ExpectedGroup]:
    types: dict[tuple[str, str], set[str]] = defaultdict(set)
    for seen in received:
        types[seen.group, seen.topic].add(seen.event_type)
    return [
        ExpectedGroup(name=group, kind=kind, topics=(topic,), event_types=tuple(sorted(found)))
        for (group, topic), found in sorted(types.items())
    ]


def _groups_of_orphans(
    sent: Collection[Sent], received: Collection[Received]
) -> list[ExpectedGroup]:
    known = {(seen.topic, seen.event_type) for seen in received}
    orphans = sorted({(s.topic, s.event_type) for s in sent} - known)
    return [
        ExpectedGroup(name=NOBODY, kind=TxKind.ROLLBACK, topics=(topic,), event_types=(type_,))
        for topic, type_ in orphans
    ]
