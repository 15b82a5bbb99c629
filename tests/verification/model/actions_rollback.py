"""What a rollback does where its event was written, or handled: compensation, or a tombstone."""

from __future__ import annotations

from shieldtx.domain.states import INBOX, InboxStatus
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.state import Group, InboxRow, State, put

_NOT_APPLIED = {InboxStatus.MAX_RECONSUMED, InboxStatus.FENCED}
_UNFINISHED = {InboxStatus.INIT, InboxStatus.PROCESSING}


def taken_back(state: State, bounds: Bounds, g: int, place: int) -> State:
    """Take an event back, once, if it had an effect here; PROCESSED in the same transaction."""
    group = state.groups[g]
    original = group.inbox[place].event.original
    found = next((row for row in group.inbox if row.event == original), None)
    waits = found is not None and found.status in _UNFINISHED
    if waits and bounds.mutant is not Mutant.COMPENSATES_UNFINISHED:
        return state.with_group(g, _released(group, place))
    group = _processed(group, place)
    is_own = g == 0
    if not is_own:
        if found is None:
            return state.with_group(g, _fenced(group, place, bounds))
        if found.status in _NOT_APPLIED:
            return state.with_group(g, group)
    before = original.number in group.compensations
    if before and bounds.mutant is not Mutant.COMPENSATES_EACH_ROLLBACK:
        return state.with_group(g, group)
    done = (*group.compensations, original.number)
    return state.with_group(g, group._replace(compensations=done))


def _released(group: Group, place: int) -> Group:
    """Let the rollback wait for its event, which has come meanwhile; no attempt is counted."""
    row = group.inbox[place]
    waits = row._replace(token=None, leased=False, attempts=row.attempts - 1, runs=row.runs - 1)
    return group._replace(inbox=put(group.inbox, place, waits))


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
