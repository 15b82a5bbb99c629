"""Hands missing events over to the group that lacks them, in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.hand_over import EventPosition, HandedOver, Sent
from shieldtx.ports.repair import (
    RepairAction,
    Repaired,
    RowSeen,
)
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.blocked_keys import BlockedKeys
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import (
    BUSINESS_KEY,
    LACKS_EARLIER,
    NOT_STORED,
    OVERTAKEN,
    TOO_OLD,
    WAITS_FOR_EARLIER,
)
from shieldtx.reconcile.repair.key_order import SETTLING, KeyOrder
from shieldtx.reconcile.repair.newcomers import Newcomers
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.rows_in_order import EventIds, NumberedRows
from shieldtx.reconcile.repair.siblings import Siblings
from shieldtx.reconcile.repair.slices import slices
from shieldtx.reconcile.repair.steps import Missing
from shieldtx.reconcile.repair.tally import Tally


@dataclass(slots=True)
class _Found:
    """The state of a part of the rows."""

    positions: Mapping[UUID, EventPosition]
    newcomers: Newcomers
    late: set[UUID]
    """Events that would arrive out of the order of their keys."""
    rows: list[RowSeen] = field(default_factory=list)
    """Rows to hand over."""

    def positions_of(self, events: Iterable[UUID]) -> Iterator[EventPosition]:
        """Yield the outbox positions of these events; events missing in the outbox are left out."""
        return (self.positions[event_id] for event_id in events if event_id in self.positions)


class HandOver:
    """Hands the events of one service over to one group of another service or of the same.

    The rows are numbered and handed over in the order of their numbers: an inbox handles the events
    of a key in the order of storage. One scan of the inbox finds the later events of many keys.
    Directly before a part is stored, the arrivals since that scan are looked up. Events that this
    repair has stored before are earlier, so they do not count as overtaking.
    """

    def __init__(self, missing: Missing, context: RepairContext) -> None:
        """Hand over events that share their services, the group and a verdict."""
        stores, policy = context.stores, context.policy
        self._missing = missing
        self._upstream, self._downstream = stores[missing.upstream], stores[missing.downstream]
        self._note = context.note(missing.verdict)
        self._out_of_order = policy.out_of_order
        self._lost_rows = policy.lost_rows
        self._young_since = policy.young_since.get(missing.downstream)
        self._dry_run = context.dry_run
        self.done = EventIds()
        """Events that were handed over, or would have been by a dry run."""
        self._limits = limits = context.limits
        self._rows = NumberedRows(missing.upstream, self._upstream, looked_up=limits.looked_up)
        self._revoked = Revoked(stores, to=missing.to, progress=context.progress)
        self._added = EventIds()
        self._blocked_keys = BlockedKeys()
        self._siblings = Siblings(
            context,
            source=missing.upstream,
            to=missing.to,
            revoked=self._revoked,
        )
        self._order = KeyOrder(
            upstream=self._upstream,
            downstream=self._downstream,
            source=missing.upstream,
            group=missing.group,
        )

    def add(self, row: RowSeen) -> None:
        """Add a PROCESSED row of the outbox whose event the group lacks."""
        self._rows.add(row)
        self._added.add([row.event_id])

    def carry_out(self, tally: Tally) -> None:
        """Hand over the added events, and count them."""
        for chunk in self._rows.in_order().parts(self._limits.compared):
            since = self._downstream.now() - SETTLING
            keyed = self._keyed(chunk)
            late = self._late(keyed)
            in_order = {i: position for i, position in keyed.items() if i not in late}
            newcomers = Newcomers(self._order, in_order, since=since, own=self.done)
            for rows in slices(chunk, self._limits.looked_up):
                found = self._look_up(rows, late, newcomers, tally)
                for batch in slices(found.rows, self._limits.batch):
                    for part in _parts_of(batch, found.positions, self._limits.part_bytes):
                        in_time = self._in_time(part, found, tally)
                        self._hand_over(found, in_time, tally)

    def _keyed(self, chunk: Sequence[RowSeen]) -> dict[UUID, EventPosition]:
        """Return the outbox positions of those events that have an order."""
        keyed: dict[UUID, EventPosition] = {}
        for rows in slices(chunk, self._limits.looked_up):
            positions = self._upstream.positions([row.event_id for row in rows])
            keyed |= {i: position for i, position in positions.items() if position.ordered_by}
        return keyed

    def _late(self, keyed: Mapping[UUID, EventPosition]) -> dict[UUID, str]:
        """Return the events that would not arrive in the order of their keys, with reasons."""
        overtaken = self._order.overtaken(keyed)
        siblings = self._siblings.of(keyed.values(), given=self._added)
        late: dict[UUID, str] = {}
        for event_id, position in keyed.items():
            if key := position.ordered_by:
                if event_id in overtaken or siblings.arrived[key].any_after(position):
                    late[event_id] = OVERTAKEN
                elif siblings.lacked[key].any_before(position):
                    late[event_id] = LACKS_EARLIER
                elif siblings.queued[key].any_before(position):
                    late[event_id] = WAITS_FOR_EARLIER
        return late

    def _look_up(
        self,
        rows: Sequence[RowSeen],
        late: Mapping[UUID, str],
        newcomers: Newcomers,
        tally: Tally,
    ) -> _Found:
        """Leave out events that have arrived, were revoked, or would come too late."""
        verdict = self._missing.verdict
        revoked = self._revoked.among(rows)
        positions = self._upstream.positions([row.event_id for row in rows])
        # Last: an event that another repair hands over now has arrived, and does not overtake
        # itself.
        events = {row.event_id: self._missing.event(row.event_id) for row in rows}
        arrived = self._downstream.received(list(events.values()))
        found = _Found(
            positions=positions, newcomers=newcomers, late=set(late).intersection(positions)
        )
        for row in rows:
            position = positions.get(row.event_id)
            if events[row.event_id] in arrived:
                self._count(tally, Repaired(needless=1))
            elif reason := revoked.get(row.event_id):
                tally.refuse(verdict, reason)
            elif may_be_forgotten(row.settled_at, position, since=self._young_since):
                tally.refuse(verdict, TOO_OLD)
            elif reason := self._lost_rows.why_not(
                row.settled_at, position, kind=TxKind.COMMIT, to=self._missing.downstream
            ):
                tally.refuse(verdict, reason)
            elif row.event_id in late and not self._out_of_order:
                tally.refuse(verdict, late[row.event_id])
            else:
                found.rows.append(row)
        return found

    def _in_time(self, rows: Sequence[RowSeen], found: _Found, tally: Tally) -> list[RowSeen]:
        """Leave out events that have been revoked or overtaken since the scan."""
        # The steps before may have taken minutes.
        revoked = self._revoked.among(rows)
        late = found.newcomers.overtaken([row.event_id for row in rows])
        # Last: an event that another repair hands over now has arrived, and does not overtake
        # itself.
        events = [self._missing.event(event_id) for event_id in late]
        late -= {event.event_id for event in self._downstream.received(events)}
        found.late |= late
        kept = []
        for row in rows:
            if reason := revoked.get(row.event_id):
                tally.refuse(self._missing.verdict, reason)
            elif row.event_id in late and not self._out_of_order:
                tally.refuse(self._missing.verdict, OVERTAKEN)
            else:
                kept.append(row)
        return kept

    def _hand_over(self, found: _Found, rows: Sequence[RowSeen], tally: Tally) -> None:
        sent = self._upstream.sent(rows, payloads=not self._dry_run)
        self._count(tally, Repaired(needless=sent.needless, changed=sent.changed))
        handed = self._downstream.hand_over(
            self._missing.group,
            self._not_blocked(sent, found, rows, tally),
            note=self._note,
            in_order=not self._out_of_order,
            dry_run=self._dry_run,
        )
        self._blocked_keys.block_after(found.positions_of(handed.not_stored))
        found.late |= {i for i in handed.done if found.positions[i] in self._blocked_keys}
        self._count(tally, _counted(handed, found.late))
        self.done.add(handed.done)
        if not self._dry_run:
            found.newcomers.hand_over(found.positions_of(handed.done))
        tally.refuse(self._missing.verdict, BUSINESS_KEY, len(handed.conflicting))
        tally.refuse(self._missing.verdict, NOT_STORED, len(handed.refused))
        tally.refuse(self._missing.verdict, WAITS_FOR_EARLIER, len(handed.later))

    def _not_blocked(
        self, sent: Sent, found: _Found, rows: Sequence[RowSeen], tally: Tally
    ) -> list[Envelope]:
        """Leave out events that follow one which should have been handed over and was not."""
        envelopes = {envelope.id: envelope for envelope in sent.envelopes}
        kept = []
        for row in rows:
            if row.event_id in sent.on_their_way:
                self._blocked_keys.block_after(found.positions_of([row.event_id]))
            if envelope := envelopes.pop(row.event_id, None):
                if self._out_of_order or found.positions[envelope.id] not in self._blocked_keys:
                    kept.append(envelope)
                else:
                    tally.refuse(self._missing.verdict, WAITS_FOR_EARLIER)
        return kept

    def _count(self, tally: Tally, repaired: Repaired) -> None:
        tally.add(self._missing.verdict, RepairAction.HAND_OVER, repaired)
        tally.hand_over(self._missing.to, repaired.done)


def _counted(handed: HandedOver, late: AbstractSet[UUID]) -> Repaired:
    return Repaired(
        done=len(handed.done),
        needless=len(handed.needless),
        out_of_order=len(handed.done & late),
    )


def _parts_of(
    rows: Sequence[RowSeen], positions: Mapping[UUID, EventPosition], most: int
) -> Iterator[Sequence[RowSeen]]:
    """Split rows before the one that would raise the sum of their payloads above `most`."""
    start = size = 0
    for number, row in enumerate(rows):
        its = positions[row.event_id].size if row.event_id in positions else 0
        if number > start and size + its > most:
            yield rows[start:number]
            start, size = number, 0
        size += its
    if start < len(rows):
        yield rows[start:]
