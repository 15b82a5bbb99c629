"""Finds events that would reach a group after later ones, where all groups get copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from shieldtx.ports.hand_over import EventPosition
from shieldtx.ports.repair import RepairedEvent, RowSeen
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import AMONG_OTHERS, OVERTAKEN
from shieldtx.reconcile.repair.key_order import SETTLING, KeyOrder
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.rows_in_order import EventIds
from shieldtx.reconcile.repair.siblings import Siblings
from shieldtx.reconcile.repair.slices import slices

Group = tuple[str, str]
"""The service and the group."""


class OrderForAll:
    """The order of one service's events for all groups that take part."""

    def __init__(
        self,
        source: str,
        context: RepairContext,
        *,
        would_have: Mapping[Group, EventIds],
    ) -> None:
        """Use the databases of all services, since each may receive the copies."""
        self._source = source
        self._context = context
        self._stores = context.stores
        self._upstream = context.stores[source]
        self._receivers = context.receivers(source)
        self._would_have = would_have
        self._looked_up = context.limits.looked_up
        self._scanned: dict[str, datetime] = {}
        """By service: the time from which arrivals count as later than the last scan."""

    def late(self, rows: Sequence[RowSeen], *, again: bool = False) -> dict[UUID, str]:
        """Return events that would reach a group after later ones of their keys, with the reasons.

        The caller passes parts of the rows in the order of their numbers, and each part takes
        scans. With `again`, rows of the last part are compared with later arrivals only, by
        indexes. The caller then leaves out rows that were late before: the later arrivals include
        all events that this repair itself has sent or handed over.
        """
        if not again:
            self._scanned = {name: s.now() - SETTLING for name, s in self._stores.items()}
        ordered: dict[UUID, EventPosition] = {}
        for part in slices(rows, self._looked_up):
            positions = self._upstream.positions([row.event_id for row in part])
            ordered |= {
                event_id: position
                for event_id, position in positions.items()
                if position.ordered_by
            }
        late: dict[UUID, str] = {}
        for group in self._receivers.groups if ordered else ():
            late = self._late_for(group, ordered, self._scanned if again else {}) | late
        return late

    def _late_for(
        self, group: Group, positions: Mapping[UUID, EventPosition], since: Mapping[str, datetime]
    ) -> dict[UUID, str]:
        service, name = group
        lacked = self._lacked(group, positions)
        if not lacked:
            return {}
        order = KeyOrder(
            upstream=self._upstream,
            downstream=self._stores[service],
            source=self._source,
            group=name,
        )
        if since:
            overtaken, _ = order.overtaken_since(lacked, since[service])
        else:
            overtaken = order.overtaken(lacked)
        late = dict.fromkeys(overtaken, OVERTAKEN)
        found = self._siblings(group).of(lacked.values(), since=since.get(self._source))
        for event_id, position in lacked.items():
            if (key := position.ordered_by) and event_id not in late:
                if found.arrived[key].any_after(position):
                    late[event_id] = OVERTAKEN
                # A relay has no order for events that are queued again: an event written later may
                # be sent first.
                elif (
                    found.sent[key].any_after(position)
                    or found.lacked[key].any_before(position)
                    or found.queued[key].any_before(position)
                ):
                    late[event_id] = AMONG_OTHERS
        return late

    def _siblings(self, group: Group) -> Siblings:
        # This group also lacks the events that another group has discarded.
        revoked = Revoked(self._stores, to=group, progress=self._context.progress)
        return Siblings(
            self._context,
            source=self._source,
            to=group,
            revoked=revoked,
            would_have=self._would_have.get(group, ()),
        )

    def _lacked(
        self, group: Group, positions: Mapping[UUID, EventPosition]
    ) -> dict[UUID, EventPosition]:
        """Return the events that a group should receive and has not received."""
        service, name = group
        would_have = self._would_have.get(group, ())
        wanted = [
            event_id
            for event_id, position in positions.items()
            if event_id not in would_have
            and self._receivers.takes(service, name, topic=position.topic, event_type=position.type)
        ]
        has: set[UUID] = set()
        for part in slices(wanted, self._looked_up):
            events = [
                RepairedEvent(event_id=event_id, source=self._source, group=name)
                for event_id in part
            ]
            has |= {event.event_id for event in self._stores[service].received(events)}
        return {event_id: positions[event_id] for event_id in wanted if event_id not in has}
