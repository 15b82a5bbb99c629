"""What a rollback does where its event was written, or handled: compensation, or a tombstone."""

from __future__ import annotations

from shieldtx.states import INBOX, InboxStatus
from tests.model.bounds import Bounds, Mutant
from tests.model.state import Group, InboxRow, State, put

_NOT_APPLIED = {InboxStatus.MAX_RECONSUMED, InboxStatus.FENCED}


def taken_back(state: State, bounds: Bounds, g: int, place: int) -> State:
    """Take an event back, once, if it had an effect here; PROCESSED in the same transaction."""
    group = state.groups[g]
    original = group.inbox[place].event.original
    group = _processed(group, place)
    is_own = g == 0
    if not is_own:
        found = next((row for row in group.inbox if row.event == original), None)
        if found is None:
            return state.with_group(g, _fenced(group, place, bounds))
        if found.status in _NOT_APPLIED:
            return state.with_group(g, group)
    before = original.number in group.compensations
    if before and bounds.mutant is not Mutant.COMPENSATES_EACH_ROLLBACK:
        return state.with_group(g, group)
    done = (*group.compensations, original.number)
    return state.with_group(g, group._replace(compensations=done))


def _processed(group: Group, place: int) -> Group:
    row = group.inbox[place]
    if row.status not in INBOX.sources_of(InboxStatus.PROCESSED):
        return group
    settled = InboxRow(row.event, InboxStatus.PROCESSED)
    return group._replace(inbox=put(group.inbox, place, settled))


def _fenced(group: Group, place: int, bounds: Bounds) -> Group:
    """Leave a tombstone: when the event comes at last, the unique key refuses it."""
    if bounds.mutant is Mutant.LEAVES_NO_TOMBSTONE:
        return group
    original = group.inbox[place].event.original
    return group._replace(inbox=(*group.inbox, InboxRow(original, InboxStatus.FENCED)))
