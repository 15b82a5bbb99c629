"""Publishes events again, in the order in which they were sent, and none behind later ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final
from uuid import UUID

from shieldtx.ports.hand_over import Key, Line
from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RepairStore, RowSeen
from shieldtx.reconcile.age import may_be_forgotten
from shieldtx.reconcile.expectations import Sent
from shieldtx.reconcile.key_order import KeyOrder
from shieldtx.reconcile.limits import Limits
from shieldtx.reconcile.repair_decisions import AMONG_OTHERS, OVERTAKEN, TOO_OLD, Policy
from shieldtx.reconcile.repair_steps import Publication
from shieldtx.reconcile.repair_tally import Tally
from shieldtx.reconcile.revoked import Revoked
from shieldtx.reconcile.rows_in_order import EventIds, NumberedRows
from shieldtx.reconcile.slices import slices

_ACTION: Final = RepairAction.PUBLISH_AGAIN


class PublishAgain:
    """Puts events of one service back in line, those of a key in their order.

    The copy of an event comes behind all that its topic has by then. That does no harm to a group
    that has the event. To one that lacks it, it would come behind the later events of its key.
    """

    def __init__(
        self,
        publication: Publication,
        *,
        stores: Mapping[str, RepairStore],
        note: Note,
        policy: Policy,
        dry_run: bool,
        limits: Limits,
    ) -> None:
        """Work on the databases of `stores`, by the names of their services."""
        self._publication = publication
        self._stores = stores
        self._upstream = stores[publication.upstream]
        self._note = note
        self._policy = policy
        self._dry_run = dry_run
        self._limits = limits
        # All groups get the copy. A rollback, too, is for groups of other services that compensate.
        self._revoked = Revoked(stores, lacked_by=None)
        self._rows = NumberedRows(publication.upstream, self._upstream, looked_up=limits.looked_up)

    def add(self, row: RowSeen) -> None:
        """Add a PROCESSED row of the outbox."""
        self._rows.add(row)

    def carry_out(self, tally: Tally, would_have: Mapping[tuple[str, str], EventIds]) -> None:
        """Publish again what was added, and count it.

        `would_have` is, by service and group, what a dry run has handed over in pretence.
        """
        order = _OrderForAll(
            self._publication.upstream,
            stores=self._stores,
            policy=self._policy,
            would_have=would_have,
            looked_up=self._limits.looked_up,
        )
        for chunk in self._rows.in_order().parts(self._limits.compared):
            late = order.late(chunk)
            for part in slices(chunk, self._limits.looked_up):
                kept = self._look_up(part, late, tally)
                for some in _alike(kept, late):
                    for batch in slices(some, self._limits.batch):
                        self._publish(batch, late, tally)

    def _look_up(
        self, rows: Sequence[RowSeen], late: Mapping[UUID, str], tally: Tally
    ) -> list[RowSeen]:
        """Leave out what has arrived, what was revoked, and what would come too late."""
        verdict, kept = self._publication.verdict, []
        arrived = self._arrived(rows)
        revoked = self._revoked.among(rows)
        lines = self._upstream.lines([row.event_id for row in rows])
        for row in rows:
            line = lines.get(row.event_id)
            if row.event_id in arrived:
                tally.add(verdict, _ACTION, Repaired(needless=1))
            elif reason := revoked.get(row.event_id):
                tally.refuse(verdict, reason)
            elif may_be_forgotten(row.settled_at, line, since=self._policy.young_for_all):
                tally.refuse(verdict, TOO_OLD)
            elif row.event_id in late and not self._policy.out_of_order:
                tally.refuse(verdict, late[row.event_id])
            else:
                kept.append(row)
        return kept

    def _publish(self, rows: Sequence[RowSeen], late: Mapping[UUID, str], tally: Tally) -> None:
        repaired = self._upstream.repair(_ACTION, rows, note=self._note, dry_run=self._dry_run)
        if rows[0].event_id in late:
            repaired = replace(repaired, out_of_order=repaired.done)
        tally.add(self._publication.verdict, _ACTION, repaired)

    def _arrived(self, rows: Sequence[RowSeen]) -> set[UUID]:
        """Return what a group has received since the run, so that it is not missing any more."""
        missing = self._publication.unless_received
        if missing is None:
            return set()
        events = [missing.event(row.event_id) for row in rows]
        return {event.event_id for event in self._stores[missing.downstream].received(events)}


def _alike(rows: Sequence[RowSeen], late: Mapping[UUID, str]) -> Iterator[list[RowSeen]]:
    """Cut rows, in their order, into those that come too late and those that do not."""
    for _, some in groupby(rows, lambda row: row.event_id in late):
        yield list(some)


class _OrderForAll:
    """The order of one service's events for all groups that take part."""

    def __init__(
        self,
        source: str,
        *,
        stores: Mapping[str, RepairStore],
        policy: Policy,
        would_have: Mapping[tuple[str, str], EventIds],
        looked_up: int,
    ) -> None:
        """Ask all services, for each may receive the copies."""
        self._source = source
        self._stores = stores
        self._upstream = stores[source]
        self._policy = policy
        self._would_have = would_have
        self._looked_up = looked_up
        self._received: dict[str, set[tuple[str, str]]] = {}
        self._open: set[tuple[str, str, Key]] = set()
        """Keys of which a group lacks events that can still be handed over in their order."""

    def late(self, rows: Sequence[RowSeen]) -> dict[UUID, str]:
        """Return which events would come to a group behind later ones of their keys, and why.

        It is asked for parts of the rows in the order of their numbers.
        """
        ordered: dict[UUID, Line] = {}
        for part in slices(rows, self._looked_up):
            lines = self._upstream.lines([row.event_id for row in part])
            ordered |= {event_id: line for event_id, line in lines.items() if line.ordered_by}
        late: dict[UUID, str] = {}
        for service, group in self._groups() if ordered else ():
            late = self._late_for(service, group, ordered) | late
        return late

    def _late_for(self, service: str, group: str, lines: Mapping[UUID, Line]) -> dict[UUID, str]:
        lacked = self._lacked(service, group, lines)
        order = KeyOrder(
            upstream=self._upstream,
            downstream=self._stores[service],
            source=self._source,
            group=group,
        )
        late = dict.fromkeys(order.overtaken(lacked), OVERTAKEN)
        latest = self._latest_sent(lacked)
        for event_id, line in sorted(lacked.items(), key=lambda each: each[1].seq):
            if event_id in late or not (key := line.ordered_by):
                continue
            if latest.get(key, line.seq) > line.seq or (service, group, key) in self._open:
                late[event_id] = AMONG_OTHERS
                self._open.add((service, group, key))
        return late

    def _latest_sent(self, lines: Mapping[UUID, Line]) -> dict[Key, int]:
        """Return the highest number above those of the events, by key.

        A relay has no order for what comes back in line: what is written later may be sent first.
        """
        after: dict[Key, int] = {}
        for line in lines.values():
            if key := line.ordered_by:
                after[key] = min(line.seq, after.get(key, line.seq))
        latest: dict[Key, int] = {}
        for key, seq in self._upstream.sent_after(after):
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
        would_have = self._would_have.get((service, group), EventIds())
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
