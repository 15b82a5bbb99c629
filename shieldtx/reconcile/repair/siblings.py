"""Finds the events that a group has or lacks, of the keys of events that it will receive.

A group must not receive an event before an earlier one of its key that it lacks: the earlier one
could then never come in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.hand_over import EventPosition, Key, Sibling
from shieldtx.ports.repair import RepairedEvent, RowSeen
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.key_positions import KeyPositions
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.slices import batches


def _by_key() -> defaultdict[Key, KeyPositions]:
    return defaultdict(KeyPositions)


@dataclass(slots=True)
class Found:
    """The positions of other events of some keys, by key."""

    sent: defaultdict[Key, KeyPositions] = field(default_factory=_by_key)
    """Events that were sent, or are to be sent."""
    arrived: defaultdict[Key, KeyPositions] = field(default_factory=_by_key)
    """Events that the group has received, if they have a chosen delay; of other events, only those
    that a dry run would have handed over."""
    lacked: defaultdict[Key, KeyPositions] = field(default_factory=_by_key)
    """Events that the group should have received and has not."""
    queued: defaultdict[Key, KeyPositions] = field(default_factory=_by_key)
    """Events that the group will receive: a relay sends them, as after a replay."""


@dataclass(slots=True)
class _Asked:
    """The events whose siblings are looked up."""

    given: Container[UUID]
    key_positions: defaultdict[Key, KeyPositions] = field(default_factory=_by_key)
    types: set[tuple[str, str]] = field(default_factory=set)
    """Topics and types of the events: the group should receive such events."""


class Siblings:
    """Looks up the events of one service for one group, by one scan of the outbox."""

    def __init__(
        self,
        context: RepairContext,
        *,
        source: str,
        to: tuple[str, str],
        revoked: Revoked,
        would_have: Container[UUID] = (),
    ) -> None:
        """Look for a group, `to`, which is given with its service."""
        self._upstream = context.stores[source]
        self._service, self._group = to
        self._downstream = context.stores[self._service]
        self._source = source
        self._looked_up = context.limits.looked_up
        self._progress = context.progress
        self._receivers = context.receivers(source)
        self._revoked = revoked
        # The group may have purged rows settled before: whether it lacks older events is unknown.
        self._young_since = context.policy.young_since.get(self._service)
        self._would_have = would_have

    def of(
        self,
        positions: Iterable[EventPosition],
        *,
        given: Container[UUID] = (),
        since: datetime | None = None,
    ) -> Found:
        """Return the siblings of events; siblings `given` in their order do not count as lacked.

        With `since`, only siblings count that are open or have settled since.
        """
        asked = _Asked(given=given)
        for position in positions:
            if key := position.ordered_by:
                asked.key_positions[key].add(position)
                asked.types.add((position.topic, position.type))
        found = Found()
        keys = asked.key_positions.keys()
        siblings = chain(
            self._upstream.siblings(keys, since=since),
            self._progress.would_be_replayed(self._source, keys),
        )
        for part in batches(siblings, self._looked_up):
            for sibling in part:
                found.sent[sibling.ordered_by].add(sibling)
            self._sort([each for each in part if self._matters(each, asked)], asked, found)
        return found

    def _matters(self, sibling: Sibling, asked: _Asked) -> bool:
        """Return whether the group may have received the sibling too early, or may lack it."""
        if sibling.event_id in self._would_have:
            return True
        key_positions = asked.key_positions[sibling.ordered_by]
        is_late = sibling.delayed_until is not None and key_positions.any_before(sibling)
        return (is_late and sibling.is_sent) or (
            not self._is_given(sibling, asked) and key_positions.any_after(sibling)
        )

    def _is_given(self, sibling: Sibling, asked: _Asked) -> bool:
        """Return whether this repair delivers the sibling, which it does not if it is queued."""
        return sibling.is_sent and sibling.event_id in asked.given

    def _sort(self, siblings: Sequence[Sibling], asked: _Asked, found: Found) -> None:
        events = [self._event(each.event_id) for each in siblings]
        received = {event.event_id for event in self._downstream.received(events)}
        lacked = []
        for sibling in siblings:
            key = sibling.ordered_by
            if sibling.event_id in self._would_have:
                found.arrived[key].add(sibling)
            elif sibling.event_id in received:
                if sibling.delayed_until is not None:
                    found.arrived[key].add(sibling)
            elif not self._is_given(sibling, asked) and self._is_missing(sibling, asked):
                lacked.append(sibling)
        revoked = self._revoked.among([self._row(each) for each in lacked]) if lacked else {}
        for sibling in lacked:
            if sibling.event_id not in revoked:
                key_positions = found.lacked if sibling.is_sent else found.queued
                key_positions[sibling.ordered_by].add(sibling)

    def _is_missing(self, sibling: Sibling, asked: _Asked) -> bool:
        topic, _ = sibling.ordered_by
        if may_be_forgotten(sibling.settled_at, sibling, since=self._young_since):
            return False
        return (topic, sibling.type) in asked.types or self._receivers.takes(
            self._service, self._group, topic=topic, event_type=sibling.type
        )

    def _event(self, event_id: UUID) -> RepairedEvent:
        return RepairedEvent(event_id=event_id, source=self._source, group=self._group)

    def _row(self, sibling: Sibling) -> RowSeen:
        return RowSeen(
            event_id=sibling.event_id,
            source=self._source,
            status=OutboxStatus.PROCESSED,
            settled_at=sibling.settled_at,
            attempts=None,
        )
