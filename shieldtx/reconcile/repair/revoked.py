"""Events that must not be delivered any more, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from shieldtx.ports.repair import RepairStore, RowSeen
from shieldtx.reconcile.repair.decisions import DISCARDED, TAKEN_BACK
from shieldtx.reconcile.repair.progress import Progress


class Revoked:
    """Queries all databases, since any of them may have taken an event back."""

    def __init__(
        self,
        stores: Mapping[str, RepairStore],
        *,
        to: tuple[str, str] | None,
        progress: Progress,
    ) -> None:
        """Look for discards of one group, given with its service; `to` None: of all groups."""
        self._stores = stores
        self._progress = progress
        self._to = to

    def among(self, rows: Sequence[RowSeen]) -> dict[UUID, str]:
        """Return the revoked ones of these events, with the reasons."""
        events = [(row.event_id, row.source) for row in rows]
        discarded = {event_id: DISCARDED for event_id, _ in self._discarded(events)}
        taken_back = {
            event_id: TAKEN_BACK
            for store in self._stores.values()
            for event_id, _ in store.taken_back(events)
        }
        would_be = {
            event_id: TAKEN_BACK
            for event_id, source in events
            if self._progress.would_be_taken_back(event_id, source)
        }
        return discarded | taken_back | would_be

    def _discarded(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        if self._to is not None:
            service, group = self._to
            return self._stores[service].discarded(events, group=group)
        return {event for store in self._stores.values() for event in store.discarded(events)}
