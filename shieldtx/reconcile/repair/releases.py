"""Releases events that a relay has left PROCESSING, if groups may get another copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.hand_over import EventPosition
from shieldtx.ports.repair import RepairAction, RowSeen
from shieldtx.reconcile.repair.age import may_be_forgotten
from shieldtx.reconcile.repair.context import RepairContext
from shieldtx.reconcile.repair.decisions import TOO_OLD
from shieldtx.reconcile.repair.revoked import Revoked
from shieldtx.reconcile.repair.rows_in_order import NumberedRows
from shieldtx.reconcile.repair.slices import slices
from shieldtx.reconcile.repair.tally import Tally
from shieldtx.reconcile.verdicts import Verdict

_ACTION: Final = RepairAction.RELEASE_EVENT
_UNTIL_A_RELAY_RUNS: Final = (
    "it is not released, but a relay sends it as soon as one runs: before you start one, read "
    "`shieldtx trace` with its id, and where groups must not get another copy, settle the row by "
    '"An event that is not released" in docs/how-to/reconciliation.md'
)


def not_released(reason: str) -> str:
    """Return why an event stays PROCESSING, and what to do before a relay sends it."""
    return f"{reason}; {_UNTIL_A_RELAY_RUNS}"


class Releases:
    """Releases PROCESSING events of one service.

    The relay may have sent the event before it ended, and the next relay sends it to all groups. So
    the rules for every copy apply: no group may have purged its row of the event, and the event
    must not have been taken back.
    """

    def __init__(self, service: str, verdict: Verdict, context: RepairContext) -> None:
        """Release events whose PROCESSING rows a run has listed with one verdict."""
        self._verdict = verdict
        self._outbox = context.stores[service]
        self._context = context
        self._revoked = Revoked(context.stores, to=None, progress=context.progress)
        self._rows = NumberedRows(
            service,
            self._outbox,
            looked_up=context.limits.looked_up,
            status=OutboxStatus.PROCESSING,
        )

    def add(self, row: RowSeen) -> None:
        """Add a PROCESSING row of the outbox."""
        self._rows.add(row)

    def carry_out(self, tally: Tally) -> None:
        """Release the added events, and count them."""
        limits = self._context.limits
        for rows in self._rows.in_order().parts(limits.looked_up):
            for batch in slices(rows, limits.batch):
                # The steps before may have taken minutes.
                refused = self._refused(batch)
                for row in batch:
                    if row.event_id in refused:
                        tally.refuse(self._verdict, not_released(refused[row.event_id]))
                self._release([row for row in batch if row.event_id not in refused], tally)

    def _release(self, rows: Sequence[RowSeen], tally: Tally) -> None:
        note, dry_run = self._context.note(self._verdict), self._context.dry_run
        released = self._outbox.repair(_ACTION, rows, note=note, dry_run=dry_run)
        tally.add(self._verdict, _ACTION, released)

    def _refused(self, rows: Sequence[RowSeen]) -> dict[UUID, str]:
        """Return the events that are not released, with reasons; missing rows have no reason."""
        positions = self._outbox.positions([row.event_id for row in rows])
        known = {
            event_id: reason
            for event_id, position in positions.items()
            if (reason := self._why_not(position))
        }
        return known | self._revoked.among(rows)

    def _why_not(self, position: EventPosition) -> str | None:
        policy, sent_at = self._context.policy, _earliest_copy(position)
        if may_be_forgotten(sent_at, since=policy.young_for_all):
            return TOO_OLD
        return policy.lost_rows.why_not(sent_at, kind=position.kind)


def _earliest_copy(position: EventPosition) -> datetime:
    """Return the time before which no copy of an event was sent."""
    # Only an attempt without an answer leaves an earlier copy, whose time the row does not have.
    # Otherwise the only copy is of the last attempt, which was made when the event was due.
    return (
        position.written_at if position.unconfirmed else max(position.due_at, position.written_at)
    )
