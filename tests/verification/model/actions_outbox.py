"""The write side and the relay: business transaction, shard lease, claim, publish, settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shieldtx.domain.states import OUTBOX, OutboxStatus
from shieldtx.ports.broker import DeliveryOutcome
from tests.verification.model.actions_broker import append
from tests.verification.model.bounds import Bounds, Mutant
from tests.verification.model.state import (
    GONE,
    Event,
    OutboxRow,
    Relay,
    Sending,
    Service,
    State,
    Step,
    put,
)


def application(state: State, bounds: Bounds) -> Iterator[Step]:
    """Write the next event in a business transaction, which commits or rolls back."""
    if state.written == bounds.events:
        return
    event = Event(state.written + 1)
    orders = state.services[0]
    after = state._replace(written=event.number)
    row = OutboxRow(event)
    yield f"the application commits {event}", after.with_service(0, add(orders, row))
    if state.faults:
        if bounds.mutant is Mutant.SENDS_BEFORE_COMMIT:
            after = append(after, event)
        yield f"the application dies before the COMMIT of {event}", after.after_fault()


def add(service: Service, row: OutboxRow) -> Service:
    """Insert a row at the end of the outbox."""
    return service._replace(rows=(*service.rows, row))


def relays(state: State, bounds: Bounds) -> Iterator[Step]:
    """Yield the steps of every relay, and the expiry of its shard's lease."""
    for s, service in enumerate(state.services):
        if not service.rows:
            continue
        yield from _lease_ends(state, s)
        yield from _overdue_claim_arrives(state, bounds, s)
        for r, relay in enumerate(service.relays):
            name = f"relay {r + 1} of {service.name}"
            yield from _takes_shard(state, s, r, name)
            if relay.is_ambiguous:
                yield from _withdraws(state, bounds, s, r, name)
            elif not relay.claim:
                yield from _claims(state, bounds, s, r, name)
            elif any(sending.outcome is None for sending in relay.claim):
                yield from _publishes(state, s, r, name)
            else:
                yield from _writes_down(state, bounds, s, r, name)
            if state.faults and (service.owner == r or not relay.is_idle):
                yield f"{name} dies", _without(state, bounds, s, r).after_fault()
            if state.faults and service.owner == r and service.leased and relay.is_idle:
                handed = service._replace(owner=None, leased=False)
                yield f"{name} hands its shard over", state.with_service(s, handed).after_fault()


def _lease_ends(state: State, s: int) -> Iterator[Step]:
    """Let the leases expire: a dead owner's sooner or later, a running owner's if it is delayed.

    A row's lease ends with the lease that its shard had at the claim, or earlier. An earlier end
    needs a renewal of the shard's lease, and matters only if the claim is forgotten: only the
    shard's owner may claim, and that relay settles first.
    """
    service = state.services[s]
    forgotten = any(row.leased and row.token == GONE for row in service.rows)
    if forgotten and service.owner != GONE:
        rows = tuple(row._replace(leased=row.leased and row.token != GONE) for row in service.rows)
        ended = state.with_service(s, service._replace(rows=rows))
        yield f"the lease of a forgotten claim of {service.name} runs out", ended
    if not service.leased:
        return
    rows = tuple(row._replace(leased=False) if row.leased else row for row in service.rows)
    ended = state.with_service(s, service._replace(leased=False, rows=rows))
    if service.owner == GONE:
        yield f"the lease of the dead relay of {service.name} runs out", ended
    elif state.faults:
        late = f"relay {service.owner + 1} of {service.name} is delayed past its lease"
        yield late, ended.after_fault()


def _takes_shard(state: State, s: int, r: int, name: str) -> Iterator[Step]:
    """Take a shard without an owner; renewal continues during the publication of a batch."""
    service = state.services[s]
    # Idle relays are alike: the first of them represents all. An empty shard is not useful yet.
    is_first = all(not relay.is_idle for relay in service.relays[:r])
    is_needed = any(not row.is_settled for row in service.rows)
    if not service.leased and is_needed and (is_first or not service.relays[r].is_idle):
        taken = service._replace(owner=r, leased=True)
        yield f"{name} takes the shard", state.with_service(s, taken)


def _claims(state: State, bounds: Bounds, s: int, r: int, name: str) -> Iterator[Step]:
    """Lease the unblocked rows, in the order in which they were written."""
    service = state.services[s]
    if service.owner != r or not service.leased:
        return
    # A row that waits is due, or not yet.
    for is_due in {True, not any(row.waiting for row in service.rows)}:
        claimed = _claimed(service.rows, r, bounds, is_due=is_due)
        claim = tuple(
            Sending(row.event, row.attempts, row.unconfirmed)
            for before, row in zip(service.rows, claimed, strict=True)
            if row is not before
        )
        if not claim:
            continue
        leased = state.with_service(s, service._replace(rows=claimed))
        events = ", ".join(str(sending.event) for sending in claim)
        yield f"{name} claims {events}", _remembering(leased, s, r, Relay(claim))
        if state.faults:
            lost = _remembering(leased, s, r, Relay(is_ambiguous=True))
            if bounds.mutant is Mutant.FORGETS_LOST_CLAIM:
                lost = _orphaned(_remembering(leased, s, r, Relay()), s, r)
            yield f"{name} claims {events}, and the answer is lost", lost.after_fault()
            ambiguous = _remembering(state, s, r, Relay(is_ambiguous=True))
            overdue = ambiguous.with_service(s, ambiguous.services[s]._replace(overdue=r))
            yield f"the claim of {name} is delayed on its way", overdue.after_fault()


def _overdue_claim_arrives(state: State, bounds: Bounds, s: int) -> Iterator[Step]:
    """Lease rows to the relay with the name of the claim, if that relay exists."""
    service = state.services[s]
    r = service.overdue
    if r is None or service.owner != r or not service.leased:
        return
    rows = _claimed(service.rows, r, bounds, is_due=True)
    if not service.relays[r].is_ambiguous:
        # No relay has its token in memory.
        rows = tuple(
            row if row is before else row._replace(token=GONE)
            for before, row in zip(service.rows, rows, strict=True)
        )
    arrived = state.with_service(s, service._replace(rows=rows, overdue=None))
    yield f"the claim of relay {r + 1} of {service.name} arrives", arrived


def _claimed(
    rows: tuple[OutboxRow, ...], r: int, bounds: Bounds, *, is_due: bool
) -> tuple[OutboxRow, ...]:
    """Return the rows with those claimed that are free, due and not blocked."""
    after: list[OutboxRow] = []
    key_waits = False
    for row in rows:
        is_free = row.status is OutboxStatus.INIT or not row.leased
        if row.is_settled or key_waits or not is_free or (row.waiting and not is_due):
            after.append(row)
        else:
            taken_over = row.status is OutboxStatus.PROCESSING
            forgets = bounds.mutant is Mutant.TAKES_OVER_WITHOUT_DOUBT
            after.append(
                row._replace(
                    status=OutboxStatus.PROCESSING,
                    attempts=row.attempts + 1,
                    token=r,
                    leased=True,
                    unconfirmed=row.unconfirmed or (taken_over and not forgets),
                )
            )
        # Whichever relay has claimed it, the row blocks later rows.
        key_waits |= row.waiting and bounds.mutant is not Mutant.SENDS_PAST_A_RETRY
    return tuple(after)


def _withdraws(state: State, bounds: Bounds, s: int, r: int, name: str) -> Iterator[Step]:
    """Release all rows with the token of an ambiguous claim, and rename the relay."""
    service = state.services[s]
    rows = tuple(_released(row, r, bounds) for row in service.rows)
    overdue = service.overdue
    if overdue == r and bounds.mutant is not Mutant.KEEPS_ITS_NAME:
        overdue = None  # finds no shards
    given_back = state.with_service(s, service._replace(rows=rows, overdue=overdue))
    yield f"{name} withdraws its claim", _remembering(given_back, s, r, Relay())


def _publishes(state: State, s: int, r: int, name: str) -> Iterator[Step]:
    """Send the next record of the claim; a record without acknowledgement ends the call."""
    claim = state.services[s].relays[r].claim
    place = next(i for i, sending in enumerate(claim) if sending.outcome is None)
    event, rest = claim[place].event, claim[place:]

    def ended(after: State, outcomes: list[DeliveryOutcome]) -> State:
        ended_sendings = [
            sending._replace(outcome=o) for sending, o in zip(rest, outcomes, strict=False)
        ]
        return _remembering(
            after, s, r, Relay((*claim[:place], *ended_sendings, *rest[len(outcomes) :]))
        )

    yield f"{name} sends {event}", ended(append(state, event), [DeliveryOutcome.ACKNOWLEDGED])
    if not state.faults:
        return
    broken = state.after_fault()
    everything = len(rest)
    yield f"{name} is refused {event}", ended(broken, [DeliveryOutcome.REFUSED] * everything)
    yield (
        f"{name} finds no broker for {event}",
        ended(broken, [DeliveryOutcome.UNSENT] * everything),
    )
    unknown = [DeliveryOutcome.UNCONFIRMED] * everything
    yield f"{name} sends {event}, which is lost unanswered", ended(broken, unknown)
    flying = broken._replace(flying=broken.flying + tuple(sending.event for sending in rest))
    yield f"{name} sends {event}, which is delayed unanswered", ended(flying, unknown)
    for sending in rest:
        broken = append(broken, sending.event)
        yield f"{name} sends up to {sending.event}, the answers are lost", ended(broken, unknown)


def _writes_down(state: State, bounds: Bounds, s: int, r: int, name: str) -> Iterator[Step]:
    """Settle the claim in one transaction; then write each permanent failure in its own."""
    service = state.services[s]
    relay = service.relays[r]
    if bounds.mutant is Mutant.FORGETS_WRITE_BACKS and state.faults:
        forgotten = _orphaned(_remembering(state, s, r, Relay()), s, r)
        yield f"{name} cannot settle and forgets it", forgotten.after_fault()
    if relay.is_settled:
        sending, *others = relay.claim
        failed = _settled(state, s, sending, lambda row: _failed(row, sending, r, bounds))
        done, what = Relay(tuple(others), is_settled=bool(others)), f"fails {sending.event}"
    else:
        failed = state
        for sending in relay.claim:
            failed = _settled(failed, s, sending, lambda row, x=sending: _end(row, x, r, bounds))
        permanent = tuple(x for x in relay.claim if _is_permanent_failure(x, bounds))
        done, what = Relay(permanent, is_settled=bool(permanent)), "settles"
    yield f"{name} {what}", _remembering(failed, s, r, done)
    if state.faults and failed is not state:
        yield f"{name} {what}, and the answer is lost", failed.after_fault()


def _end(row: OutboxRow, sending: Sending, r: int, bounds: Bounds) -> OutboxRow:
    """Record the outcome of sending one row."""
    outcome = sending.outcome
    if outcome is DeliveryOutcome.UNCONFIRMED and bounds.mutant is Mutant.PROCESSED_WHEN_AMBIGUOUS:
        outcome = DeliveryOutcome.ACKNOWLEDGED
    if outcome is DeliveryOutcome.ACKNOWLEDGED:
        if not _may_write(row, OutboxStatus.PROCESSED, r, bounds):
            return row
        return OutboxRow(row.event, OutboxStatus.PROCESSED, published=row.published)
    if outcome is DeliveryOutcome.REFUSED:
        if _is_permanent_failure(sending, bounds) or not _may_write(
            row, OutboxStatus.INIT, r, bounds
        ):
            return row
        return row._replace(status=OutboxStatus.INIT, token=None, leased=False, waiting=True)
    released = _released(row, r, bounds)
    if outcome is DeliveryOutcome.UNCONFIRMED and released is not row:
        return released._replace(unconfirmed=True)
    return released


def _released(row: OutboxRow, r: int, bounds: Bounds) -> OutboxRow:
    """Release a row unchanged, without counting the attempt."""
    if not _may_write(row, OutboxStatus.INIT, r, bounds):
        return row
    return row._replace(
        status=OutboxStatus.INIT, token=None, leased=False, attempts=row.attempts - 1
    )


def _failed(row: OutboxRow, sending: Sending, r: int, bounds: Bounds) -> OutboxRow:
    """Fail a row permanently, with its local rollback unless the broker may have its record."""
    if not _may_write(row, OutboxStatus.FAILED, r, bounds):
        return row
    return OutboxRow(
        row.event,
        OutboxStatus.FAILED,
        published=row.published,
        undone=not sending.unconfirmed,
    )


def _may_write(row: OutboxRow, target: OutboxStatus, r: int, bounds: Bounds) -> bool:
    """Return the guard of every write-back: the row is claimed, and by this claim."""
    sources = OUTBOX.sources_of(target, among=(OutboxStatus.PROCESSING,))
    fenced = bounds.mutant is not Mutant.SETTLES_WITHOUT_TOKEN
    return row.status in sources and (row.token == r or not fenced)


def _is_permanent_failure(sending: Sending, bounds: Bounds) -> bool:
    return sending.outcome is DeliveryOutcome.REFUSED and sending.attempts >= bounds.send_attempts


def _settled(
    state: State, s: int, sending: Sending, end: Callable[[OutboxRow], OutboxRow]
) -> State:
    """Replace the row of a sending; return the same state if the row is not this claim's."""
    service = state.services[s]
    place = next(i for i, row in enumerate(service.rows) if row.event == sending.event)
    row = service.rows[place]
    after = end(row)
    if after is row:
        return state
    return state.with_service(s, service._replace(rows=put(service.rows, place, after)))


def _remembering(state: State, s: int, r: int, relay: Relay) -> State:
    service = state.services[s]
    return state.with_service(s, service._replace(relays=put(service.relays, r, relay)))


def _orphaned(state: State, s: int, r: int) -> State:
    """Forget the token of the rows that a relay had claimed."""
    service = state.services[s]
    rows = tuple(row._replace(token=GONE) if row.token == r else row for row in service.rows)
    return state.with_service(s, service._replace(rows=rows))


def _without(state: State, bounds: Bounds, s: int, r: int) -> State:
    """Kill a relay and restart it with a new name and an empty memory."""
    after = _orphaned(_remembering(state, s, r, Relay()), s, r)
    service = after.services[s]
    if service.overdue == r:
        service = service._replace(overdue=None)
        after = after.with_service(s, service)
    if service.owner != r or bounds.mutant is Mutant.RESTARTS_UNDER_ITS_NAME:
        return after
    return after.with_service(s, service._replace(owner=GONE))
