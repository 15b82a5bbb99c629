"""Publishes events again, in the order in which they were sent, and none after later ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final
from uuid import UUID

from shieldtx.ports.hand_over import EventPosition
from shieldtx.ports.repair import RepairAction, Repaired, RepairedEvent, RowSeen
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import LOST, TOO_OLD
from shieldtx.reconcile.repair.order_for_all import OrderForAll
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.rows_in_order import EventIds, NumberedRows
from shieldtx.reconcile.repair.slices import slices
from shieldtx.reconcile.repair.steps import Publication
from shieldtx.reconcile.repair.tally import Tally

_ACTION: Final = RepairAction.PUBLISH_AGAIN


class PublishAgain:
    """Queues events of one service again, those of a key in their order.

    The copy of an event follows all records that its topic has by then. For a group that has the
    event, the copy has no effect. A group that lacks the event would receive it after the later
    events of its key.
    """

    def __init__(self, publication: Publication, context: RepairContext) -> None:
        """Publish events of one service that share a verdict."""
        self._publication = publication
        self._context = context
        self._stores, self._policy = context.stores, context.policy
        self._limits, self._progress = context.limits, context.progress
        self._upstream = context.stores[publication.upstream]
        # All groups get the copy. A rollback is also for groups of other services that compensate.
        self._revoked = Revoked(context.stores, to=None, progress=context.progress)
        self._rows = NumberedRows(
            publication.upstream, self._upstream, looked_up=context.limits.looked_up
        )

    def add(self, row: RowSeen) -> None:
        """Add a PROCESSED row of the outbox."""
        self._rows.add(row)

    def carry_out(self, tally: Tally, would_have: Mapping[tuple[str, str], EventIds]) -> None:
        """Publish the added events again, and count them.

        `would_have` has the events that a dry run would have handed over, by service and group.
        """
        order = OrderForAll(
            self._publication.upstream,
            self._context,
            would_have=would_have,
        )
        for chunk in self._rows.in_order().parts(self._limits.compared):
            late = order.late(chunk)
            for part in slices(chunk, self._limits.looked_up):
                kept = self._look_up(part, late, tally)
                for batch in slices(kept, self._limits.batch):
                    # The steps before may have taken minutes.
                    in_order = [row for row in batch if row.event_id not in late]
                    by_now = _of(batch, late) | order.late(in_order, again=True)
                    for some in _alike(self._in_time(batch, by_now, tally), by_now):
                        self._publish(some, by_now, tally)

    def _look_up(
        self, rows: Sequence[RowSeen], late: Mapping[UUID, str], tally: Tally
    ) -> list[RowSeen]:
        """Leave out events that have arrived, were revoked, or would come too late."""
        verdict, kept = self._publication.verdict, []
        arrived = self._arrived(rows)
        revoked = self._revoked.among(rows)
        positions = self._upstream.positions([row.event_id for row in rows])
        lost = self._lost(rows, positions)
        for row in rows:
            position = positions.get(row.event_id)
            # One copy serves all groups that lack the event.
            is_queued = self._progress.has_published(row.source, row.event_id)
            if is_queued or row.event_id in arrived:
                tally.add(verdict, _ACTION, Repaired(needless=1))
            elif reason := revoked.get(row.event_id):
                tally.refuse(verdict, reason)
            elif may_be_forgotten(row.settled_at, position, since=self._policy.young_for_all):
                tally.refuse(verdict, TOO_OLD)
            elif row.event_id in lost:
                tally.refuse(verdict, LOST)
            elif reason := self._policy.lost_rows.why_not(
                row.settled_at, position, kind=position.kind if position else None
            ):
                tally.refuse(verdict, reason)
            elif row.event_id in late and not self._policy.out_of_order:
                tally.refuse(verdict, late[row.event_id])
            else:
                kept.append(row)
        return kept

    def _lost(self, rows: Sequence[RowSeen], positions: Mapping[UUID, EventPosition]) -> set[UUID]:
        """Return the events that groups lack although an earlier run found that they had them."""
        known, lost = self._policy.in_order, set[UUID]()
        for inlet in known.inlets(self._publication.upstream):
            had = {
                row.event_id
                for row in rows
                if (position := positions.get(row.event_id)) is not None
                and (position.topic, position.type) == (inlet.topic, inlet.event_type)
                and known.had(inlet, row.settled_at)
            }
            events = [
                RepairedEvent(event_id=each, source=inlet.upstream, group=inlet.group)
                for each in had
            ]
            has = self._stores[inlet.downstream].received(events) if events else ()
            lost |= had - {event.event_id for event in has}
        return lost

    def _in_time(
        self, rows: Sequence[RowSeen], late: Mapping[UUID, str], tally: Tally
    ) -> list[RowSeen]:
        """Leave out events that have been revoked, or would now come too late."""
        verdict, kept = self._publication.verdict, []
        revoked = self._revoked.among(rows)
        for row in rows:
            if reason := revoked.get(row.event_id):
                tally.refuse(verdict, reason)
            elif row.event_id in late and not self._policy.out_of_order:
                tally.refuse(verdict, late[row.event_id])
            else:
                kept.append(row)
        return kept

    def _publish(self, rows: Sequence[RowSeen], late: Mapping[UUID, str], tally: Tally) -> None:
        note, dry_run = self._context.note(self._publication.verdict), self._context.dry_run
        repaired = self._upstream.repair(_ACTION, rows, note=note, dry_run=dry_run)
        self._progress.publish(self._publication.upstream, repaired.events)
        if rows[0].event_id in late:
            repaired = replace(repaired, out_of_order=repaired.done)
        tally.add(self._publication.verdict, _ACTION, repaired)

    def _arrived(self, rows: Sequence[RowSeen]) -> set[UUID]:
        """Return the events that a group has received since the run: they are no longer missing."""
        missing = self._publication.unless_received
        if missing is None:
            return set()
        events = [missing.event(row.event_id) for row in rows]
        return {event.event_id for event in self._stores[missing.downstream].received(events)}


def _of(rows: Sequence[RowSeen], late: Mapping[UUID, str]) -> dict[UUID, str]:
    return {row.event_id: late[row.event_id] for row in rows if row.event_id in late}


def _alike(rows: Sequence[RowSeen], late: Mapping[UUID, str]) -> Iterator[list[RowSeen]]:
    """Split rows, in their order, into runs that come too late and runs that do not."""
    for _, some in groupby(rows, lambda row: row.event_id in late):
        yield list(some)
