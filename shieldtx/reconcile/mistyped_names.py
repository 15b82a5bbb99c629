"""Names in the configuration that match no event: a mistyped name would hide missing events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import ExpectedGroup, Member, Received, Sent


def mistyped_names(
    members: Sequence[Member], sent: Collection[Sent], received: Collection[Received]
) -> Iterator[tuple[str, str]]:
    """Yield each declared name that matches no event: the service of the group, and a sentence.

    `sent` and `received` cover all events that are kept. `received` also has the events that
    earlier runs have seen: a type that occurs once a month is not mistyped in between. An inbox may
    keep events that the outbox of the upstream has purged.
    """
    kept = [*(_named(s, s.upstream) for s in sent), *(_named(r, r.source) for r in received)]
    commits = [name for name in kept if name is not None]
    for member in members:
        for group in member.groups or ():
            for word, name in _names_that_fit_nothing(member, group, commits):
                if name not in group.may_be_unused:
                    yield (
                        member.name,
                        (
                            f"group {group.name} of {member.name} {word} {name}, and no such event "
                            "is kept, nor has a run seen one: correct the name, or add it to "
                            "the group's `may_be_unused`"
                        ),
                    )


class _Named(NamedTuple):
    """The attributes of a COMMIT event that the declaration of a group may name."""

    topic: str
    event_type: str
    source: str


def _named(what: Sent | Received, source: str) -> _Named | None:
    return _Named(what.topic, what.event_type, source) if what.kind is TxKind.COMMIT else None


def _names_that_fit_nothing(
    member: Member, group: ExpectedGroup, commits: Sequence[_Named]
) -> Iterable[tuple[str, str]]:
    # Compensations name events: if all goes well, rollbacks of the events do not exist yet.
    is_back = group.kind is TxKind.ROLLBACK
    if group.of_others:
        # The receiving half of the group has the topics and services.
        known = {c.event_type for c in commits if c.source != member.name}
        names = (name for name in group.event_types if name not in known)
        yield from (("compensates events of others called", name) for name in names)
        return
    # A group has one filter of types, for the events that it receives and those it compensates.
    halves = [each for each in member.groups or () if each.name == group.name]
    received = {topic for each in halves if each.kind is TxKind.COMMIT for topic in each.topics}
    of_topics = [
        c for c in commits if not is_back or c.source == member.name or c.topic in received
    ]
    verb = "compensates" if is_back else "receives"
    known = {each.topic for each in of_topics}
    yield from ((verb, topic) for topic in group.topics if topic not in known)
    both = {topic for each in halves for topic in each.topics}
    is_any = any(not each.topics for each in halves)
    known = {each.event_type for each in commits if is_any or each.topic in both}
    yield from (("is to have the events", t) for t in group.event_types if t not in known)
    fitting = {
        each.source
        for each in commits
        if (not group.topics or each.topic in group.topics)
        and (not group.event_types or each.event_type in group.event_types)
    }
    if not is_back:
        yield from (("is to have events from", u) for u in group.upstreams if u not in fitting)
