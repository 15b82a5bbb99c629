"""Which events would come to a group behind later ones, where all groups get copies of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from shieldtx.ports.hand_over import Key, Line
from shieldtx.ports.repair import RepairedEvent, RepairStore, RowSeen
from shieldtx.reconcile.digest_set import DigestSet
from shieldtx.reconcile.expectations import Sent
from shieldtx.reconcile.key_order import SETTLING, KeyOrder
from shieldtx.reconcile.repair_decisions import AMONG_OTHERS, OVERTAKEN, Policy
from shieldtx.reconcile.slices import slices
from shieldtx.reconcile.would_have import OfGroups, WouldHave


class OrderForAll:
    """The order of one service's events for all groups that take part."""

    def __init__(
        self,
        source: str,
        *,
        stores: Mapping[str, RepairStore],
        policy: Policy,
        would_have: OfGroups,
        left_out: OfGroups,
        looked_up: int,
    ) -> None:
        """Ask all services, for each may receive the copies.

        Of `would_have` a dry run takes it that groups have it. What is `left_out` they lack.
        """
        self._source = source
        self._stores = stores
        self._upstream = stores[source]
        self._policy = policy
        self._would_have = would_have
        self._left_out = left_out
        self._looked_up = looked_up
        self._received: dict[str, set[tuple[str, str]]] = {}
        self._scanned: dict[str, datetime] = {}
        """By service: from when on its database is asked what has come since the last scan."""
        self._open = DigestSet()
        """Keys of which a group lacks events that can still be handed over in their order."""

    def late(self, rows: Sequence[RowSeen], *, again: bool = False) -> dict[UUID, str]:
        """Return which events would come to a group behind later ones of their keys, and why.

        It is asked for parts of the rows in the order of their numbers, which takes scans. With
        `again`, rows of the last such part are compared with what has come since: by indexes.
        """
        if not again:
            self._scanned = {name: s.now() - SETTLING for name, s in self._stores.items()}
        ordered: dict[UUID, Line] = {}
        for part in slices(rows, self._looked_up):
            lines = self._upstream.lines([row.event_id for row in part])
            ordered |= {event_id: line for event_id, line in lines.items() if line.ordered_by}
        late: dict[UUID, str] = {}
        for service, group in self._groups() if ordered else ():
            late = self._late_for(service, group, ordered, self._scanned if again else {}) | late
        return late

    def _late_for(
        self,
        service: str,
        group: str,
        lines: Mapping[UUID, Line],
        since: Mapping[str, datetime],
    ) -> dict[UUID, str]:
        lacked = self._lacked(service, group, lines)
        order = KeyOrder(
            upstream=self._upstream,
            downstream=self._stores[service],
            source=self._source,
            group=group,
        )
        late = dict.fromkeys(order.overtaken(lacked, since=since.get(service)), OVERTAKEN)
        latest = self._latest_sent(lacked, since.get(self._source))
        would_have = self._would_have.get((service, group), WouldHave())
        left_out = self._left_out.get((service, group), WouldHave())
        for event_id, line in sorted(lacked.items(), key=lambda each: each[1].seq):
            if event_id in late or not (key := line.ordered_by):
                continue
            of_group = "\0".join((service, group, *key)).encode()
            if would_have.has_later(key, line.seq):
                late[event_id] = OVERTAKEN
            elif (
                latest.get(key, line.seq) > line.seq
                or left_out.has_earlier(key, line.seq)
                or of_group in self._open
            ):
                late[event_id] = AMONG_OTHERS
                self._open.add(of_group)
        return late

    def _latest_sent(self, lines: Mapping[UUID, Line], since: datetime | None) -> dict[Key, int]:
        """Return the highest number above those of the events, by key.

        A relay has no order for what comes back in line: what is written later may be sent first.
        """
        after: dict[Key, int] = {}
        for line in lines.values():
            if key := line.ordered_by:
                after[key] = min(line.seq, after.get(key, line.seq))
        latest: dict[Key, int] = {}
        for key, seq in self._upstream.sent_after(after, since=since):
            latest[key] = max(seq, latest.get(key, seq))
        return latest

    def _groups(self) -> list[tuple[str, str]]:
        if not self._received:
            self._received = {
                name: store.receivers(self._source) for name, store in self._stores.items()
            }
        seen = {(name, group) for name, types in self._received.items() for group, _ in types}
        named = {
            (name, group.name)
            for name in self._stores
            for group in self._policy.groups.get(name, ())
        }
        return sorted(seen | named)

    def _lacked(self, service: str, group: str, lines: Mapping[UUID, Line]) -> dict[UUID, Line]:
        """Return what is for a group that has not received it."""
        would_have = self._would_have.get((service, group), WouldHave())
        wanted = [
            event_id
            for event_id, line in lines.items()
            if self._is_for(service, group, line) and event_id not in would_have
        ]
        has: set[UUID] = set()
        for part in slices(wanted, self._looked_up):
            events = [
                RepairedEvent(event_id=event_id, source=self._source, group=group)
                for event_id in part
            ]
            has |= {event.event_id for event in self._stores[service].received(events)}
        return {event_id: lines[event_id] for event_id in wanted if event_id not in has}

    def _is_for(self, service: str, group: str, line: Line) -> bool:
        """Whether a group should receive an event, by what it has received or by its name."""
        if (group, line.type) in self._received[service]:
            return True
        what = Sent(upstream=self._source, kind=line.kind, topic=line.topic, event_type=line.type)
        return any(
            named.name == group and named.kind is line.kind and named.takes(what, service=service)
            for named in self._policy.groups.get(service, ())
        )
