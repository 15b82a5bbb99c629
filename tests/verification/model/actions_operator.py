"""An operator's decisions about parked events: replay, refusal, discard."""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.domain.states import InboxStatus, TxKind
from tests.verification.model.actions_outbox import add
from tests.verification.model.state import Event, InboxRow, OutboxRow, State, Step, put


def actions(state: State) -> Iterator[Step]:
    """Decide about each event that is parked now; DEAD rollbacks stay as they are."""
    if not state.decisions:
        return
    for g, group in enumerate(state.groups):
        for place, row in enumerate(group.inbox):
            if row.status is not InboxStatus.DEAD or row.event.kind is TxKind.ROLLBACK:
                continue
            named = f"{row.event} in {group.name}"
            yield f"an operator replays {named}", _with(state, g, place, InboxStatus.PROCESSING)
            yield f"an operator discards {named}", _with(state, g, place, InboxStatus.DISCARDED)
            refused = _with(state, g, place, InboxStatus.MAX_RECONSUMED)
            rollback = OutboxRow(Event(row.event.number, group.name))
            service = add(refused.services[g], rollback)
            yield f"an operator refuses {named}", refused.with_service(g, service)


def _with(state: State, g: int, place: int, status: InboxStatus) -> State:
    group = state.groups[g]
    row = InboxRow(group.inbox[place].event, status, parked=True)
    changed = group._replace(inbox=put(group.inbox, place, row))
    return state.with_group(g, changed)._replace(decisions=state.decisions - 1)
