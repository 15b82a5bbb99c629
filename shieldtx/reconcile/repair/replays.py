"""Replays FAILED events: none that its service has undone, none after later ones of its key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus, TxKind
from shieldtx.ports.hand_over import EventPosition, Key, LaterPositions
from shieldtx.ports.repair import RepairAction, Repaired, RowSeen
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import (
    AFTER_LATER_ONES,
    FOR_OTHERS,
    TOO_OLD,
    UNDONE_LOCALLY,
)
from shieldtx.reconcile.repair.key_order import SETTLING
from shieldtx.reconcile.repair.key_positions import KeyPositions
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.rows_in_order import NumberedRows
from shieldtx.reconcile.repair.slices import slices
from shieldtx.reconcile.repair.tally import Tally
from shieldtx.reconcile.verdicts import Verdict

_ACTION: Final = RepairAction.REPLAY_EVENT


class Replays:
    """Replays FAILED events of one service, in the order of its outbox.

    A replayed event is sent after all records that its topic has by then. A FAILED event blocks
    nothing, so later events of its key may have been sent.
    """

    def __init__(
        self,
        service: str,
        verdict: Verdict,
        context: RepairContext,
    ) -> None:
        """Replay events whose FAILED rows a run has listed with one verdict."""
        self._service = service
        self._verdict = verdict
        self._outbox = context.stores[service]
        self._context = context
        self._limits = context.limits
        self._policy = context.policy
        self._revoked = Revoked(context.stores, to=None, progress=context.progress)
        self._rows = NumberedRows(
            service, self._outbox, looked_up=context.limits.looked_up, status=OutboxStatus.FAILED
        )

    def add(self, row: RowSeen) -> None:
        """Add a FAILED row of the outbox."""
        self._rows.add(row)

    def carry_out(self, tally: Tally) -> None:
        """Replay the added events, and count them."""
        for rows in self._rows.in_order().parts(self._limits.looked_up):
            since = self._outbox.now() - SETTLING
            # One scan of the outbox finds the later events of many keys.
            late = self._late(self._outbox.positions([row.event_id for row in rows]), None)
            for batch in slices(rows, self._limits.batch):
                # The steps before may have taken minutes.
                positions = self._outbox.positions([row.event_id for row in batch])
                in_order = {i: position for i, position in positions.items() if i not in late}
                by_now = late | self._late(in_order, since)
                refused = self._refused(batch, positions, by_now)
                for row in batch:
                    if row.event_id in refused:
                        tally.refuse(self._verdict, refused[row.event_id])
                kept = [row for row in batch if row.event_id not in refused]
                repaired = self._replay(kept, by_now, tally)
                if self._context.dry_run:
                    replayed = {
                        i: position for i, position in positions.items() if i in repaired.events
                    }
                    self._context.progress.pretend_to_replay(self._service, replayed)

    def _replay(self, rows: Sequence[RowSeen], late: set[UUID], tally: Tally) -> Repaired:
        note, dry_run = self._context.note(self._verdict), self._context.dry_run
        repaired = self._outbox.repair(_ACTION, rows, note=note, dry_run=dry_run)
        out_of_order = len(late.intersection(repaired.events))
        tally.add(self._verdict, _ACTION, replace(repaired, out_of_order=out_of_order))
        return repaired

    def _refused(
        self, rows: Sequence[RowSeen], positions: Mapping[UUID, EventPosition], late: set[UUID]
    ) -> dict[UUID, str]:
        """Return the events that are not replayed, with reasons; missing rows have no reason."""
        late = set() if self._policy.out_of_order else late
        why = {
            event_id: reason
            for event_id, position in positions.items()
            if (reason := self._why_not(position, is_late=event_id in late))
        }
        return why | self._revoked.among(rows)

    def _why_not(self, position: EventPosition, *, is_late: bool) -> str | None:
        # When the event failed, the relay ran the local rollback, unless an attempt may have
        # delivered the event. Rollbacks have no local rollback.
        if position.kind is TxKind.COMMIT and not position.unconfirmed:
            return UNDONE_LOCALLY
        if may_be_forgotten(None, position, since=self._policy.young_for_all):
            return TOO_OLD
        if reason := self._policy.lost_rows.why_not(None, position, kind=position.kind):
            return reason
        for_others = self._policy.is_for_others(
            position.topic, position.type, writer=self._service, kind=position.kind
        )
        if position.unconfirmed and for_others:
            return FOR_OTHERS
        return AFTER_LATER_ONES if is_late else None

    def _late(self, positions: Mapping[UUID, EventPosition], since: datetime | None) -> set[UUID]:
        """Return the events of which later ones of the key were sent, or are to be sent.

        With `since`, only events count that are open or have settled since.
        """
        keyed = {i: position for i, position in positions.items() if position.ordered_by}
        key_positions: defaultdict[Key, KeyPositions] = defaultdict(KeyPositions)
        keys = {key for position in keyed.values() if (key := position.ordered_by)}
        # Events that this repair has replayed itself are earlier, and are not read before each
        # batch.
        later = LaterPositions.any_of(keyed.values())
        for sibling in self._outbox.siblings(keys, since=since, later=later):
            key_positions[sibling.ordered_by].add(sibling)
        return {
            event_id
            for event_id, position in keyed.items()
            if (key := position.ordered_by) and key_positions[key].any_after(position)
        }
