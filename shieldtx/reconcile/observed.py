"""Observations of a run in the databases and at the broker on which verdicts depend.

An incremental run relies on the earlier run for each event without changes since. So it may start
only if it finds the same state. An unchanged event may lack a group that the earlier run did not
expect, and a replaced topic has lost records of unchanged events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from shieldtx.domain.states import TxKind
from shieldtx.reconcile.expectations import Member, Received


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTopic:
    """A topic, by its name at the broker, at one moment."""

    topic_id: str | None
    """Changes when the topic is deleted and created again; None: an old broker has no topic ids."""
    ends: Mapping[int, int]
    """By partition: the offset of the next record."""
    writers: frozenset[str] = frozenset()
    """Services that wrote a row or a record of the topic in some run, or that name the topic for
    others; empty: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedTopics:
    """The topics of a run."""

    cluster: str | None = None
    """The id of the Kafka cluster; None: topics were not read, or an old broker has no cluster id.
    """
    topics: Mapping[str, ObservedTopic | None] = field(default_factory=dict)
    """By the name at the broker; None: the topic does not exist."""

    def of_services(self, names: Collection[str]) -> ObservedTopics:
        """Return the topics on which these services may have written."""
        kept = {
            name: topic
            for name, topic in self.topics.items()
            if topic is None or not topic.writers or not topic.writers.isdisjoint(names)
        }
        return replace(self, topics=kept)


FormerSince = Mapping[str, Mapping[str, datetime]]
"""By service, and by former group in the notation of the configuration: since when it is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """Observations of earlier runs, of the same services in the same databases."""

    received: tuple[Received, ...] = ()
    """Receipts of groups, whether or not their inboxes still have the rows."""
    former_since: FormerSince = field(default_factory=dict)
    """By the clock of the service's database, at the first run that knew of the former group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """The observations of a run, in addition to its configuration."""

    received: tuple[Received, ...] = ()
    """Receipts of groups in this run and earlier ones. `decisive` selects the receipts that define
    what a group should receive."""
    former_since: FormerSince = field(default_factory=dict)
    topics: ObservedTopics = field(default_factory=ObservedTopics)


def undeclared_kinds(member: Member) -> list[TxKind]:
    """Return the kinds of events for which a service declares no group and past receipts count.

    For rollbacks, only those of the service's own events count.
    """
    declared = {group.kind for group in member.groups or () if not group.of_others}
    return [kind for kind in TxKind if kind not in declared]


def decisive(members: Collection[Member], received: Iterable[Received]) -> tuple[Received, ...]:
    """Return the receipts that alone define what should be received, sorted."""
    by_name = {member.name: member for member in members}
    known = (seen for seen in received if seen.source in by_name)
    speaking = {seen for seen in known if _speaks(by_name[seen.downstream], seen, by_name)}
    return tuple(sorted(speaking, key=repr))


def remembered(members: Collection[Member], past: Past) -> tuple[Received, ...]:
    """Return the receipts of earlier runs that define what should be received now.

    Of a former group, only the compensations of other services' events count: the group should
    still receive the rollbacks of events that it has applied.
    """
    by_name = {member.name: member for member in members}
    return tuple(
        seen
        for seen in decisive(members, past.received)
        if _is_of_others(seen) or not by_name[seen.downstream].is_former(seen)
    )


def _speaks(member: Member, seen: Received, names: Collection[str]) -> bool:
    """Return whether past receipts of a service define what its groups should receive."""
    if _is_of_others(seen):
        declared = {group.kind for group in member.groups or ()}
        return seen.causation_source in names and TxKind.ROLLBACK not in declared
    return seen.kind in undeclared_kinds(member)


def _is_of_others(seen: Received) -> bool:
    """Return whether this is a rollback of another service's event."""
    return seen.kind is TxKind.ROLLBACK and seen.causation_source != seen.downstream


def received_first(earlier: Observed, now: Iterable[Received]) -> Iterator[str]:
    """Yield sentences for groups that have received events of a type for the first time.

    Two cases are left out. The first group of a service that receives rollbacks of a type of its
    own: the earlier run expected these of `NO_GROUP`, and was not good if any existed. A group that
    had received rollbacks of the type from any service: it should receive all of them.
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
    """Yield sentences for topics that may have lost records which the earlier run saw."""
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
