"""The invariants of every state, of every step, and of states without further steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, Lifecycle, OutboxStatus, S, TxKind
from tests.support.transitions import is_unrepaired
from tests.verification.model.bounds import Bounds
from tests.verification.model.state import FORGER, Group, InboxRow, OutboxRow, Phase, Service, State

Row: TypeAlias = OutboxRow | InboxRow


class Breach(NamedTuple):
    """A violated invariant, and how it is violated."""

    invariant: str
    what: str


NO_GHOST = "I1 no ghost"
NO_LOSS = "I2 no loss"
ONE_EFFECT = "I3 one effect"
ORDER = "I4 order"
ONE_OUTCOME = "I5 one outcome"
AUTHORITY = "I6 authority"
DRAIN = "I8 drain"
LEGAL_STATES = "I9 legal states"

_UNDONE = {InboxStatus.DEAD, InboxStatus.DISCARDED}


def of_state(state: State, bounds: Bounds) -> Iterator[Breach]:
    """Check what must never be the case, not even for a moment."""
    yield from _ghosts(state)
    for row in state.services[0].rows:
        if row.status is OutboxStatus.PROCESSED and not row.published:
            yield Breach(NO_LOSS, f"{row.event} is PROCESSED and was never on the topic")
        if row.undone and row.published:
            yield Breach(ONE_OUTCOME, f"{row.event} was undone locally and published")
    for group, service in zip(state.groups, state.services, strict=True):
        yield from _of_group(state, group, bounds)
        yield from _of_parked_events(group, service)


def _of_parked_events(group: Group, service: Service) -> Iterator[Breach]:
    """A parked or discarded event has neither an effect nor a rollback of its group."""
    rollbacks = {row.event for row in service.rows}
    for row in group.inbox:
        if row.status not in _UNDONE or row.event.kind is TxKind.ROLLBACK:
            continue
        if row.event.number in group.effects:
            yield Breach(ONE_OUTCOME, f"{group.name} applied {row.event}, which is {row.status}")
        if (row.event.number, group.name) in rollbacks:
            yield Breach(ONE_OUTCOME, f"{row.event} is {row.status}, and {group.name} took it back")


def _ghosts(state: State) -> Iterator[Breach]:
    written = {row.event for service in state.services for row in service.rows}
    for event in {event for topic in state.topics for event in topic} - written:
        if event.taken_back_by != FORGER:
            yield Breach(NO_GHOST, f"{event} is on the topic and in no outbox")


def _of_group(state: State, group: Group, bounds: Bounds) -> Iterator[Breach]:
    if len(set(group.effects)) < len(group.effects):
        yield Breach(ONE_EFFECT, f"{group.name} applied {group.effects}")
    # An ambiguous failed row blocks no row, and its record may still arrive: an operator decides.
    failed = {r.event.number for r in state.services[0].rows if r.status is OutboxStatus.FAILED}
    # Neither does a parked one, which an operator may replay.
    late = failed | {row.event.number for row in group.inbox if row.parked}
    in_order = [number for number in group.effects if number not in late]
    if sorted(in_order) != in_order:
        yield Breach(ORDER, f"{group.name} applied {group.effects}")
    if len(set(group.compensations)) < len(group.compensations):
        yield Breach(AUTHORITY, f"{group.name} compensated {group.compensations}")
    for number in group.compensations:
        if not _given_up(state, number):
            yield Breach(AUTHORITY, f"{group.name} compensated e{number}, which no group gave up")
        if group is not state.groups[0] and number not in group.effects:
            yield Breach(ONE_OUTCOME, f"{group.name} compensated e{number} and never applied it")
    for row in group.inbox:
        if row.runs > bounds.attempts:
            yield Breach(DRAIN, f"{group.name} started {row.event} more often than it may be tried")
        if row.status is InboxStatus.MAX_RECONSUMED and row.event.number in group.effects:
            yield Breach(ONE_OUTCOME, f"{group.name} applied {row.event} and gave it up")


def of_step(before: State, after: State) -> Iterator[Breach]:
    """Check status changes against the lifecycles."""
    if before.services is not after.services:
        for old, new in zip(before.services, after.services, strict=True):
            yield from _illegal(OUTBOX, old.rows, new.rows)
    if before.groups is not after.groups:
        for was, now in zip(before.groups, after.groups, strict=True):
            yield from _illegal(INBOX, was.inbox, now.inbox)


def _illegal(
    lifecycle: Lifecycle[S], before: Sequence[Row], after: Sequence[Row]
) -> Iterator[Breach]:
    if before is after:
        return
    for place, row in enumerate(after):
        source = before[place].status if place < len(before) else None
        if source is not row.status and not is_unrepaired(lifecycle, source, row.status):
            yield Breach(LEGAL_STATES, f"{row.event} went from {source} to {row.status}")


def of_rest(state: State) -> Iterator[Breach]:
    """Check what is missing where only a fault is left as a step: it will never happen."""
    yield from _stuck(state)
    for row in state.services[0].rows:
        if row.status is OutboxStatus.PROCESSED:
            yield from _missing_ends(state, row.event.number)


def _stuck(state: State) -> Iterator[Breach]:
    for service in state.services:
        for row in service.rows:
            if not row.is_settled:
                yield Breach(DRAIN, f"{row.event} stays {row.status} in the outbox")
        if any(not relay.is_idle for relay in service.relays):
            yield Breach(DRAIN, f"a relay of {service.name} is stuck")
    for group in state.groups:
        for row in group.inbox:
            if not row.is_settled:
                yield Breach(DRAIN, f"{row.event} stays {row.status} in the inbox of {group.name}")
        if any(worker.phase is not Phase.IDLE for worker in group.workers):
            yield Breach(DRAIN, f"a worker of {group.name} is stuck")


def _missing_ends(state: State, number: int) -> Iterator[Breach]:
    """An event ends in each group; refused by one, all roll it back, or an operator decides."""
    for group in state.groups[1:]:
        if all(row.event != (number, "") for row in group.inbox):
            yield Breach(NO_LOSS, f"e{number} never came to {group.name}")
    rollbacks = [
        row for service in state.services[1:] for row in service.rows if row.event.number == number
    ]
    if _given_up(state, number) and not rollbacks:
        yield Breach(ONE_OUTCOME, f"e{number} was given up, and has no rollback")
    if not any(row.status is OutboxStatus.PROCESSED for row in rollbacks):
        return
    for group in state.groups:
        required = group is state.groups[0] or number in group.effects
        if group.readings[1] is None or _waits_for_a_person(state, group, number):
            continue
        if required and number not in group.compensations:
            yield Breach(ONE_OUTCOME, f"e{number} was taken back, and not by {group.name}")


def _given_up(state: State, number: int) -> bool:
    return any(
        row.status is InboxStatus.MAX_RECONSUMED and row.event.number == number
        for group in state.groups[1:]
        for row in group.inbox
    )


def _waits_for_a_person(state: State, group: Group, number: int) -> bool:
    """Return whether an operator has to replay a DEAD rollback, with a chance of success."""
    rows: list[Row] = [*state.services[0].rows, *group.inbox]
    if any(row.purged for row in rows if row.event == (number, "")):
        return False
    return any(
        row.event.number == number
        and row.event.kind is TxKind.ROLLBACK
        and row.status is InboxStatus.DEAD
        for row in group.inbox
    )
