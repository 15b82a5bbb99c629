"""What a run met in the databases and at the broker that verdicts depend on.

An incremental run trusts the earlier run for every event that has not moved since. It may do so
only where it meets the same: an event that has not moved lacks a group that the earlier run did not
expect to have it, and a topic that was replaced has lost records that have not moved either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Received


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTopic:
    """A topic, by the broker's name of it, at one moment."""

    topic_id: str | None
    """Another one after the topic was deleted and created again; None: an old broker has none."""
    ends: Mapping[int, int]
    """By partition: the offset of the next record."""
    writers: frozenset[str] = frozenset()
    """Services of which runs have seen a row or a record of it, or that name it for others; empty:
    not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTopics:
    """The topics of a run."""

    cluster: str | None = None
    """The id of the Kafka cluster; None: topics were not read, or an old broker has none."""
    topics: Mapping[str, ObservedTopic | None] = field(default_factory=dict)
    """By the broker's name of each; None: it does not exist."""

    def of_services(self, names: Collection[str]) -> ObservedTopics:
        """Return the topics on which these services may have written."""
        kept = {
            name: topic
            for name, topic in self.topics.items()
            if topic is None or not topic.writers or not topic.writers.isdisjoint(names)
        }
        return replace(self, topics=kept)


FormerSince = Mapping[str, Mapping[str, datetime]]
"""By service and by its former group, as the configuration names it: since when it has been one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What earlier runs have seen of the same services in the same databases."""

    received: tuple[Received, ...] = ()
    """What groups have received, whether or not their inboxes have any of it left."""
    former_since: FormerSince = field(default_factory=dict)
    """By the clock of the service's database, at the first run that knew of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What a run met, beside what it was configured with."""

    received: tuple[Received, ...] = ()
    """What groups had received, and what earlier runs have seen them receive. What of it says that
    they should receive it, `decisive` tells."""
    former_since: FormerSince = field(default_factory=dict)
    topics: ObservedTopics = field(default_factory=ObservedTopics)


def undeclared_kinds(member: Member) -> list[TxKind]:
    """Return the kinds of events of which a service declares no group, so that its past speaks.

    Of rollbacks, it speaks of those of the service's own events.
    """
    declared = {group.kind for group in member.groups or () if not group.of_others}
    return [kind for kind in TxKind if kind not in declared]


def decisive(members: Collection[Member], received: Iterable[Received]) -> tuple[Received, ...]:
    """Return what has been received and says by itself what should be, in an order of its own."""
    by_name = {member.name: member for member in members}
    known = (seen for seen in received if seen.source in by_name)
    speaking = {seen for seen in known if _speaks(by_name[seen.downstream], seen, by_name)}
    return tuple(sorted(speaking, key=repr))


def remembered(members: Collection[Member], past: Past) -> tuple[Received, ...]:
    """Return what earlier runs have seen, and says what should be received now.

    Of a former group, what says that it compensates events of others: it should receive the
    rollbacks of what it has applied still.
    """
    by_name = {member.name: member for member in members}
    return tuple(
        seen
        for seen in decisive(members, past.received)
        if _is_of_others(seen) or not by_name[seen.downstream].is_former(seen)
    )


def _speaks(member: Member, seen: Received, names: Collection[str]) -> bool:
    """Whether the past of a service says what its groups should receive."""
    if _is_of_others(seen):
        declared = {group.kind for group in member.groups or ()}
        return seen.causation_source in names and TxKind.ROLLBACK not in declared
    return seen.kind in undeclared_kinds(member)


def _is_of_others(seen: Received) -> bool:
    """Whether it is a rollback of another service's event."""
    return seen.kind is TxKind.ROLLBACK and seen.causation_source != seen.downstream


def received_first(earlier: Observed, now: Iterable[Received]) -> Iterator[str]:
    """Say in sentences which groups have received events of a type that they had not before.

    Not the first group of a service that receives rollbacks of a type of its own: the earlier run
    expected those of NOBODY, and was not good if there were any. A group is left out, too, if it
    had received rollbacks of the type of another service, from any service: it should receive all.
    """
    known = set(earlier.received)
    compensated = {replace(seen, group="") for seen in known if seen.kind is TxKind.ROLLBACK}
    of_others = {replace(seen, source="") for seen in known if _is_of_others(seen)}
    for new in now:
        is_expected = (
            replace(new, source="") in of_others
            if _is_of_others(new)
            else new.kind is TxKind.ROLLBACK and replace(new, group="") not in compensated
        )
        if new not in known and not is_expected:
            yield (
                f"group {new.group} of {new.downstream} received {new.event_type} ({new.topic}, "
                f"{new.kind}) of {new.source} for the first time, so that earlier ones are "
                "expected there too"
            )


def topics_replaced(earlier: ObservedTopics, now: ObservedTopics) -> Iterator[str]:
    """Say in sentences which topics may have lost records that the earlier run saw."""
    if earlier.cluster != now.cluster:
        yield "the topics are in another Kafka cluster"
        return
    for name, before in sorted(earlier.topics.items()):
        if before is None:
            continue
        after = now.topics.get(name)
        if after is None:
            yield f"topic {name} does not exist any more"
        elif after.topic_id != before.topic_id:
            yield f"topic {name} was deleted and created again"
        else:
            yield from _shorter(name, before, after)


def _shorter(name: str, before: ObservedTopic, after: ObservedTopic) -> Iterator[str]:
    for partition, end in sorted(before.ends.items()):
        if after.ends.get(partition, 0) < end:
            yield (
                f"partition {partition} of topic {name} ends at offset "
                f"{after.ends.get(partition, 0)}, and ended at {end} in the last good run: records "
                "were lost"
            )
            return
