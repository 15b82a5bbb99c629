"""The effect of a rollback in the writing and the handling service: compensation or tombstone.

Where a group has several workers the transaction takes two steps: it reads the event, and it
compensates. Between them another worker may receive the event.
"""

from __future__ import annotations

from shieldtx.domain.states import INBOX, InboxStatus
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.state import (
    Event,
    Group,
    InboxRow,
    Phase,
    State,
    Worker,
    put,
)

_NOT_APPLIED = {
    InboxStatus.MAX_RECONSUMED,
    InboxStatus.FENCED,
    InboxStatus.DEAD,
    InboxStatus.DISCARDED,
}
_UNFINISHED = {InboxStatus.INIT, InboxStatus.PROCESSING}


def looked(state: State, bounds: Bounds, g: int, w: int, place: int) -> State:
    """Read the event: its row stays locked until the transaction ends."""
    group = state.groups[g]
    worker = group.workers[w]
    found = _received(group, worker.event.original)
    if _waits(found, bounds):
        group, after = _released(group, place), Worker()
    else:
        after = worker._replace(phase=Phase.LOOKED, found=found is not None)
    return state.with_group(g, group._replace(workers=put(group.workers, w, after)))


def taken_back(state: State, bounds: Bounds, g: int, place: int, *, found_none: bool) -> State:
    """Take an event back, once, if it had an effect here; PROCESSED in the same transaction.

    With `found_none`, the transaction has found no event: it leaves a tombstone, unless the event
    has arrived meanwhile.
    """
    group = state.groups[g]
    original = group.inbox[place].event.original
    found = _received(group, original)
    has_come = found_none and found is not None
    if has_come and bounds.mutant is Mutant.LOOKS_ONCE:
        group = _processed(group, place)
    elif has_come or _waits(found, bounds):
        group = _released(group, place)
    elif g == 0 and _is_purged(state, original):
        # Every attempt fails, and so does every replay.
        group = _ended(group, place, InboxStatus.DEAD)
    elif g and found is None:
        group = _fenced(_processed(group, place), place, bounds)
    else:
        group = _processed(group, place)
        if not _is_moot(group, found, original, bounds):
            group = group._replace(compensations=(*group.compensations, original.number))
        if bounds.mutant is not Mutant.LEAVES_A_PARKED_EVENT:
            group = _without_parked(group, original)
    return state.with_group(g, group)


def _without_parked(group: Group, event: Event) -> Group:
    """Refuse a parked event, which no operator may replay any more."""
    for place, row in enumerate(group.inbox):
        if row.event == event and row.status is InboxStatus.DEAD:
            return _ended(group, place, InboxStatus.FENCED)
    return group


def _is_moot(group: Group, found: InboxRow | None, original: Event, bounds: Bounds) -> bool:
    """Return whether the event was never applied here, or is compensated."""
    if found is not None and found.status in _NOT_APPLIED:
        return True
    before = original.number in group.compensations
    return before and bounds.mutant is not Mutant.COMPENSATES_EACH_ROLLBACK


def _received(group: Group, event: Event) -> InboxRow | None:
    return next((row for row in group.inbox if row.event == event and not row.purged), None)


def _waits(found: InboxRow | None, bounds: Bounds) -> bool:
    is_unfinished = found is not None and found.status in _UNFINISHED
    return is_unfinished and bounds.mutant is not Mutant.COMPENSATES_UNFINISHED


def _is_purged(state: State, original: Event) -> bool:
    return any(row.purged for row in state.services[0].rows if row.event == original)


def _released(group: Group, place: int) -> Group:
    """Let the rollback wait for its event, which has arrived meanwhile; no attempt is counted."""
    row = group.inbox[place]
    waits = row._replace(token=None, leased=False, attempts=row.attempts - 1, runs=row.runs - 1)
    return group._replace(inbox=put(group.inbox, place, waits))


def _processed(group: Group, place: int) -> Group:
    return _ended(group, place, InboxStatus.PROCESSED)


def _ended(group: Group, place: int, target: InboxStatus) -> Group:
    row = group.inbox[place]
    if row.status not in INBOX.sources_of(target):
        return group
    ended = InboxRow(row.event, target, parked=row.parked)
    return group._replace(inbox=put(group.inbox, place, ended))


def _fenced(group: Group, place: int, bounds: Bounds) -> Group:
    """Leave a tombstone: when the event arrives later, the unique key refuses it."""
    if bounds.mutant is Mutant.LEAVES_NO_TOMBSTONE:
        return group
    original = group.inbox[place].event.original
    return group._replace(inbox=(*group.inbox, InboxRow(original, InboxStatus.FENCED)))
