"""The purge: it removes settled events, except those that an open or DEAD rollback needs.

Retention outlasts an event and its rollbacks, so the model tries it only when all of them have
arrived. Other purges change nothing that a later step reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.state import FORGER, Event, Group, State, Step, put


def actions(state: State, bounds: Bounds) -> Iterator[Step]:
    """Purge an event where it was written, and where it was handled."""
    if not bounds.purges:
        return
    for g, group in enumerate(state.groups):
        for number in range(1, state.written + 1):
            event = Event(number)
            if not _is_old(state, g, event):
                continue
            if _is_needed(group, event) and bounds.mutant is not Mutant.PURGES_UNDER_A_ROLLBACK:
                continue
            after = _without(state, g, event)
            if after is not state:
                yield f"{group.name} purges {event}", after


def _is_old(state: State, g: int, event: Event) -> bool:
    """Return whether the event is settled everywhere, and this group has all its rollbacks."""
    of_event = [
        row for service in state.services for row in service.rows if row.event.original == event
    ]
    settled = all(row.status is OutboxStatus.PROCESSED for row in of_event)
    rollbacks = {row.event for row in of_event if row.event.kind is TxKind.ROLLBACK}
    received = {row.event for row in state.groups[g].inbox if row.event.kind is TxKind.ROLLBACK}
    return (
        settled
        and bool(rollbacks)
        and rollbacks <= received
        and event not in (*state.flying, *state.topics[0])
        and all(
            any(row.event == event and row.is_settled for row in group.inbox)
            for group in state.groups[1:]
        )
    )


def _is_needed(group: Group, event: Event) -> bool:
    return any(
        row.event.kind is TxKind.ROLLBACK
        and row.event.taken_back_by != FORGER
        and row.event.original == event
        and (not row.is_settled or row.status is InboxStatus.DEAD)
        for row in group.inbox
    )


def _without(state: State, g: int, event: Event) -> State:
    """Mark the event's row as purged; return the same state if there is no such row."""
    if g == 0:
        orders = state.services[0]
        for place, row in enumerate(orders.rows):
            if row.event == event and not row.purged:
                rows = put(orders.rows, place, row._replace(purged=True))
                return state.with_service(0, orders._replace(rows=rows))
        return state
    group = state.groups[g]
    for place, received in enumerate(group.inbox):
        if received[:2] == (event, InboxStatus.PROCESSED) and not received.purged:
            inbox = put(group.inbox, place, received._replace(purged=True))
            return state.with_group(g, group._replace(inbox=inbox))
    return state
