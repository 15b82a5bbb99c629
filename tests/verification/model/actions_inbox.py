"""The consumer: poll, insert, commit the offset; and an event from attempt to terminal state."""

from __future__ import annotations

from collections.abc import Iterator

from shieldtx.domain.states import INBOX, InboxStatus, TxKind
from tests.verification.model.actions_outbox import add
from tests.verification.model.actions_rollback import looked, taken_back
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.state import (
    FORGER,
    GONE,
    TOPICS,
    Event,
    Group,
    InboxRow,
    OutboxRow,
    Phase,
    Reading,
    State,
    Step,
    Worker,
    put,
)


def workers(state: State, bounds: Bounds) -> Iterator[Step]:
    """Yield the steps of every worker of every group, and the expiry of their leases."""
    for g, group in enumerate(state.groups):
        yield from _lease_ends(state, g)
        for w, worker in enumerate(group.workers):
            name = f"worker {w + 1} of {group.name}"
            if worker.phase is Phase.IDLE:
                yield from _polls(state, g, w, name)
                yield from _starts(state, bounds, g, w, name)
            elif worker.phase is Phase.POLLED:
                yield from _receives(state, bounds, g, w, name)
            elif worker.phase is Phase.STORED:
                yield from _commits_offset(state, g, w, name)
            elif worker.phase in {Phase.ATTEMPT, Phase.LOOKED}:
                yield from _ends_attempt(state, bounds, g, w, name)
            else:
                yield f"{name} writes its rollback", _rolled_back(_idle(state, g, w), g, worker)
            if state.faults and worker.phase is not Phase.IDLE:
                yield f"{name} dies", _without(state, g, w).after_fault()
            if state.faults and worker.phase is not Phase.IDLE and len(group.workers) > 1:
                yield f"{name} loses its partition", _rebalanced(state, g, w).after_fault()


def _polls(state: State, g: int, w: int, name: str) -> Iterator[Step]:
    group = state.groups[g]
    for place, reading in enumerate(group.readings):
        if reading is None or reading.owner != w or reading.position == len(state.topics[place]):
            continue
        event = state.topics[place][reading.position]
        readings = put(group.readings, place, reading._replace(position=reading.position + 1))
        polled = _holding(group._replace(readings=readings), w, Worker(Phase.POLLED, event))
        yield f"{name} polls {event}", state.with_group(g, polled)


def _receives(state: State, bounds: Bounds, g: int, w: int, name: str) -> Iterator[Step]:
    """Insert the row, unless the unique key knows it; park what is not genuine."""
    if bounds.mutant is Mutant.OFFSET_BEFORE_INSERT and state.groups[g].workers[w].is_member:
        early = _offset_committed(state, g, w)
        if early is not state:
            yield f"{name} commits the offset", early
            return
    group = state.groups[g]
    worker = group.workers[w]
    event = worker.event
    is_new = all(row.event != event for row in group.inbox)
    if bounds.mutant is Mutant.INSERTS_DUPLICATES:
        is_new = True
    if event.taken_back_by == FORGER and bounds.mutant is not Mutant.TRUSTS_ANY_ROLLBACK:
        is_new = False
    inbox = (*group.inbox, InboxRow(event)) if is_new else group.inbox
    stored = _holding(group._replace(inbox=inbox), w, worker._replace(phase=Phase.STORED))
    yield f"{name} receives {event}", state.with_group(g, stored)


def _commits_offset(state: State, g: int, w: int, name: str) -> Iterator[Step]:
    yield f"{name} commits the offset", _idle(_offset_committed(state, g, w), g, w)


def _offset_committed(state: State, g: int, w: int) -> State:
    """Store a group's offset; the commit of a worker that lost the partition is ignored."""
    group = state.groups[g]
    worker = group.workers[w]
    place = TOPICS.index(worker.event.kind)
    reading = group.readings[place]
    if not worker.is_member or reading.committed == reading.position:
        return state
    readings = put(group.readings, place, reading._replace(committed=reading.position))
    return state.with_group(g, group._replace(readings=readings))


def _starts(state: State, bounds: Bounds, g: int, w: int, name: str) -> Iterator[Step]:
    """Count an attempt at an unblocked row, before its handler runs."""
    group = state.groups[g]
    for place, row in enumerate(group.inbox):
        if row.is_settled or row.leased or _is_blocked(group, place, bounds):
            continue
        if any(other.phase is Phase.LOOKED and other.event == row.event for other in group.workers):
            continue  # locked
        is_counted = bounds.mutant is not Mutant.COUNTS_ATTEMPT_AFTERWARDS
        attempt = row.attempts + 1
        is_exhausted = attempt > bounds.attempts
        started = row._replace(
            status=InboxStatus.PROCESSING,
            attempts=attempt if is_counted else row.attempts,
            token=w,
            leased=True,
            runs=row.runs + (not is_exhausted),
        )
        worker = Worker(Phase.ATTEMPT, row.event, attempt)
        after = _holding(group._replace(inbox=put(group.inbox, place, started)), w, worker)
        yield f"{name} starts attempt {attempt} at {row.event}", state.with_group(g, after)


def _is_blocked(group: Group, place: int, bounds: Bounds) -> bool:
    """Return whether an earlier row of the key, or the event of a rollback, is unfinished.

    A rollback that waits for its event blocks no row: the two would wait for each other.
    """
    if _waits_for_its_event(group, group.inbox[place]):
        return True
    if bounds.mutant in {Mutant.HANDLES_PAST_A_RETRY, Mutant.INSERTS_DUPLICATES}:
        return False
    return any(
        not earlier.is_settled
        and (bounds.mutant is Mutant.WAITS_IN_A_CIRCLE or not _waits_for_its_event(group, earlier))
        for earlier in group.inbox[:place]
    )


def _waits_for_its_event(group: Group, row: InboxRow) -> bool:
    return row.event.kind is TxKind.ROLLBACK and any(
        other.event == row.event.original and not other.is_settled for other in group.inbox
    )


def _ends_attempt(state: State, bounds: Bounds, g: int, w: int, name: str) -> Iterator[Step]:
    """The handler returns or raises: its row records it in the same transaction, by its token."""
    group = state.groups[g]
    worker = group.workers[w]
    event = worker.event
    mine = [i for i, row in enumerate(group.inbox) if row.event == event and row.token == w]
    if not mine and bounds.mutant is Mutant.APPLIES_UNGUARDED:
        mine = [i for i, row in enumerate(group.inbox) if row.event == event]
    after = _idle(state, g, w)
    if not mine:
        yield f"{name} finds {event} taken over", after
        return
    place = mine[0]
    if worker.attempt > bounds.attempts:
        end = _parks if _may_park(group, event, bounds) else _gives_up
        yield f"{name} gives up {event}: tried too often", end(after, bounds, g, w, place)
        return
    if worker.phase is Phase.ATTEMPT and event.kind is TxKind.ROLLBACK and len(group.workers) > 1:
        yield f"{name} looks for {event.original}", looked(state, bounds, g, w, place)
        return
    found_none = worker.phase is Phase.LOOKED and not worker.found
    applied = _applied(after, bounds, g, place, found_none=found_none)
    yield f"{name} finishes {event}", applied
    if state.faults:
        # Its transaction has ended, but the worker takes it for a failure.
        failing = worker._replace(phase=Phase.ATTEMPT)
        still = applied.with_group(g, _holding(applied.groups[g], w, failing))
        yield f"{name} finishes {event}, and the answer is lost", still.after_fault()
    # A failing compensation is a fault, not a normal step.
    if event.kind is TxKind.ROLLBACK:
        if not state.faults:
            return
        after = after.after_fault()
    if worker.attempt < bounds.attempts:
        row = group.inbox[place]
        waits = row._replace(token=None, leased=False, attempts=worker.attempt)
        inbox = put(group.inbox, place, waits)
        yield f"{name} fails at {event}", after.with_group(g, after.groups[g]._replace(inbox=inbox))
    elif _may_park(group, event, bounds):
        yield f"{name} parks {event}", _parks(after, bounds, g, w, place)
    yield f"{name} gives up {event}", _gives_up(after, bounds, g, w, place)


def _applied(state: State, bounds: Bounds, g: int, place: int, *, found_none: bool) -> State:
    """Set the effect and PROCESSED, in one transaction."""
    group = state.groups[g]
    event = group.inbox[place].event
    if event.kind is TxKind.ROLLBACK:
        return taken_back(state, bounds, g, place, found_none=found_none)
    ended = _settled(group, place, InboxStatus.PROCESSED)
    return state.with_group(g, ended._replace(effects=(*group.effects, event.number)))


def _gives_up(state: State, bounds: Bounds, g: int, w: int, place: int) -> State:
    """End the attempts: the rollback event is written in the same transaction."""
    group = state.groups[g]
    event = group.inbox[place].event
    if event.kind is TxKind.ROLLBACK:
        return state.with_group(g, _settled(group, place, InboxStatus.DEAD))
    after = state.with_group(g, _settled(group, place, InboxStatus.MAX_RECONSUMED))
    worker = Worker(Phase.GAVE_UP, event)
    if bounds.mutant is Mutant.ROLLBACK_IN_SECOND_TRANSACTION:
        return after.with_group(g, _holding(after.groups[g], w, worker))
    return _rolled_back(after, g, worker)


def _may_park(group: Group, event: Event, bounds: Bounds) -> bool:
    return group.name in bounds.parks and event.kind is TxKind.COMMIT


def _parks(state: State, bounds: Bounds, g: int, w: int, place: int) -> State:
    """End the attempts without a rollback event: an operator decides."""
    row = state.groups[g].inbox[place]
    dead = InboxRow(row.event, InboxStatus.DEAD, parked=True)
    group = state.groups[g]._replace(inbox=put(state.groups[g].inbox, place, dead))
    after = state.with_group(g, group)
    if bounds.mutant is Mutant.PARKS_WITH_A_ROLLBACK:
        return _rolled_back(after, g, Worker(Phase.GAVE_UP, row.event))
    return after


def _rolled_back(state: State, g: int, worker: Worker) -> State:
    rollback = OutboxRow(Event(worker.event.number, state.groups[g].name))
    return state.with_service(g, add(state.services[g], rollback))


def _settled(group: Group, place: int, target: InboxStatus) -> Group:
    row = group.inbox[place]
    if row.status not in INBOX.sources_of(target):
        return group
    settled = InboxRow(row.event, target, parked=row.parked)
    return group._replace(inbox=put(group.inbox, place, settled))


def _lease_ends(state: State, g: int) -> Iterator[Step]:
    """Let the lease of an attempt expire: a dead worker's in time, a slow worker's too."""
    group = state.groups[g]
    for place, row in enumerate(group.inbox):
        if not row.leased or (row.token != GONE and not state.faults):
            continue
        inbox = put(group.inbox, place, row._replace(leased=False))
        ended = state.with_group(g, group._replace(inbox=inbox))
        if row.token == GONE:
            yield f"the lease of the dead worker of {group.name} at {row.event} runs out", ended
        else:
            slow = f"worker {row.token + 1} of {group.name} is slower than its lease"
            yield f"{slow} at {row.event}", ended.after_fault()


def _holding(group: Group, w: int, worker: Worker) -> Group:
    return group._replace(workers=put(group.workers, w, worker))


def _idle(state: State, g: int, w: int) -> State:
    return state.with_group(g, _holding(state.groups[g], w, Worker()))


def _without(state: State, g: int, w: int) -> State:
    """Kill a worker and restart it; its partitions go to the next worker of the group."""
    group = _without_partitions(_holding(state.groups[g], w, Worker()), w)
    inbox = tuple(row._replace(token=GONE) if row.token == w else row for row in group.inbox)
    return state.with_group(g, group._replace(inbox=inbox))


def _rebalanced(state: State, g: int, w: int) -> State:
    """Move the partitions of a running worker, with a record still in process."""
    group = state.groups[g]
    late = group.workers[w]
    if late.phase in {Phase.POLLED, Phase.STORED}:
        late = late._replace(is_member=False)
    return state.with_group(g, _without_partitions(_holding(group, w, late), w))


def _without_partitions(group: Group, w: int) -> Group:
    successor = (w + 1) % len(group.workers)
    return group._replace(
        readings=tuple(
            Reading(successor, r.committed, r.committed) if r is not None and r.owner == w else r
            for r in group.readings
        )
    )
