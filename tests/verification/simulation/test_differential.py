"""Tests that the stores in memory behave like those on SQLite and PostgreSQL, with any calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import IncomingEvent, Parked
from shieldtx.ports.relay import Retry, Settlement
from tests.verification.simulation.database import EPOCH
from tests.verification.simulation.differential import BothStores
from tests.verification.simulation.mutants import MUTANTS, applied
from tests.verification.simulation.sql_stores import SqlStores

CALLS = 70
SEQUENCES = 30

IN_THE_STORES = [
    name
    for name, mutant in MUTANTS.items()
    if isinstance(mutant.of, type)
    and mutant.of.__module__.rpartition(".")[2] in {"outbox", "inbox", "retention"}
    # Claims are compared whole: the planner chooses the rows of a smaller one.
    and mutant.method != "_bounded"
]


def test_memory_and_a_database_do_the_same(sql: SqlStores) -> None:
    _make_all(sql, SEQUENCES)


@pytest.mark.thorough
@pytest.mark.parametrize("name", IN_THE_STORES)
@pytest.mark.parametrize("sql", ["sqlite"], indirect=True)
def test_a_store_in_memory_with_a_defect_does_something_else(sql: SqlStores, name: str) -> None:
    with applied(name), pytest.raises(AssertionError):
        _make_all(sql, 10 * SEQUENCES)


def _make_all(sql: SqlStores, sequences: int) -> None:
    for seed in range(sequences):
        Calls(BothStores(sql), random.Random(seed)).make(CALLS)


class Calls:
    """Calls of every port, drawn from a seed."""

    def __init__(self, pair: BothStores, draw: random.Random) -> None:
        self.pair = pair
        self.draw = draw
        self.events: list[Envelope] = []
        self.claims: list[tuple[Any, Any]] = []
        self.relays = ["one", "two"]
        self.attempts: list[tuple[Any, Any]] = []
        self.batches: list[tuple[Any, Any]] = []
        self.probes: list[tuple[Any, Any]] = []

    def make(self, calls: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self.pass_time: 4,
            self.write: 5,
            self.refuse: 4,
            self.renew: 5,
            self.leave: 1,
            self.die: 1,
            self.claim: 6,
            self.withdraw: 1,
            self.settle: 7,
            self.receive: 6,
            self.due: 2,
            self.start_attempt: 9,
            self.effect: 6,
            self.take_back_a_parked_event: 2,
            self.effects: 4,
            self.release: 2,
            self.postpone: 2,
            self.defer: 1,
            self.note: 1,
            self.give_up: 2,
            self.pause: 4,
            self.probe: 4,
            self.replay: 2,
            self.purge: 2,
        }
        self.write()
        self.renew()
        for call in self.draw.choices(list(weights), weights=list(weights.values()), k=calls):
            call()

    # --- time and the write side ------------------------------------------------------------------

    def pass_time(self) -> None:
        self.pair.clock.now += self.seconds()

    def write(self) -> None:
        number = len(self.events)
        event = Envelope(
            id=self.pair.new_id(),
            type="t",
            source=self.draw.choice("AAADB"),
            topic="t",
            payload="1",
            time=EPOCH,
            key=self.draw.choice(["k", "k", "l", None]),
            biz_key=None if number % 3 else str(number),
        )
        self.events.append(event)
        delay = self.draw.choice([0.0, 0.0, 0.0, 3.0])
        if event.source in {"A", "D"}:
            self.pair.both(lambda side: side.write(event, delay))

    def refuse(self) -> None:
        """Make a rollback of some event, sometimes of another rollback."""
        self.rollback_of(self.draw.choice(self.events))

    def rollback_of(self, event: Envelope) -> Envelope:
        rollback = event.evolve(
            id=self.pair.new_id(),
            source=self.draw.choice("BC"),
            kind=TxKind.ROLLBACK,
            causation_id=event.id,
            causation_source=event.source,
        )
        self.events.append(rollback)
        return rollback

    # --- the relay's side -------------------------------------------------------------------------

    def renew(self) -> None:
        relay, lease = self.relay(), timedelta(seconds=self.seconds())
        holding = self.pair.same(lambda side: side.leases.renew(relay=relay, lease=lease))
        if holding.surplus:
            self.pair.both(lambda side: side.leases.release(relay=relay, shards=holding.surplus))

    def leave(self) -> None:
        relay = self.relay()
        self.pair.both(lambda side: side.leases.leave(relay=relay))

    def die(self) -> None:
        """Let the process of a relay die, and start another one."""
        relay = self.relay()
        self.relays[self.relays.index(relay)] = f"{relay} again"
        self.pair.both(lambda side: side.dead.add(relay))

    def claim(self) -> None:
        relay = self.relay()
        # Enough for all: the planner chooses the rows of a smaller claim.
        mine, theirs = self.pair.both(lambda side: side.outbox.claim(relay=relay, limit=400))
        assert [(c.envelope.id, c.attempts, c.unconfirmed) for c in mine.events] == [
            (c.envelope.id, c.attempts, c.unconfirmed) for c in theirs.events
        ]
        left = (mine.lease_left.total_seconds(), theirs.lease_left.total_seconds())
        assert left[0] == pytest.approx(left[1], abs=0.01)
        if mine.events:
            self.claims.append((mine, theirs))

    def withdraw(self) -> None:
        relay = self.relay()
        renamed = f"{relay}+"
        self.relays[self.relays.index(relay)] = renamed
        self.pair.same(lambda side: side.outbox.withdraw(relay=relay, renamed=renamed))

    def settle(self) -> None:
        if not self.claims:
            return
        mine, theirs = self.draw.choice(self.claims[-3:])
        ends: dict[str, list[Any]] = {
            end: [] for end in ("processed", "unsent", "unconfirmed", "retry", "fail")
        }
        for claimed in mine.events:
            ends[self.draw.choice(list(ends))].append(claimed.envelope.id)
        delay = timedelta(seconds=self.seconds())
        settlement = Settlement(
            processed=ends["processed"],
            unsent=ends["unsent"],
            unconfirmed=ends["unconfirmed"],
            retries=[Retry(event_id=i, delay=delay, reason="later") for i in ends["retry"]],
            reason="away",
        )
        memory = self.pair.memory

        def token(side: Any) -> Any:
            return (mine if side is memory else theirs).token

        self.pair.same(lambda side: side.outbox.settle(token(side), settlement))
        for event_id in ends["fail"]:
            undo = self.draw.choice([None, _breaks, _succeeds])
            self.pair.same(
                lambda side, event_id=event_id, undo=undo: side.outbox.fail(
                    token(side), event_id, reason="refused", local_rollback=undo
                )
            )

    # --- the consumer's side ----------------------------------------------------------------------

    def receive(self) -> None:
        group = self.group()
        arrivals = [
            self.arrival(self.draw.choice(self.events)) for _ in range(self.draw.randint(1, 4))
        ]
        parked = []
        if self.draw.random() < 0.2:
            # Another event of the same business key, and an undecodable record.
            first = arrivals[0]
            store = first.envelope.evolve(id=self.pair.new_id())
            arrivals.append(self.arrival(store))
            parked.append(Parked(record=_record(99), reason="bad"))
        self.receive_all(group, arrivals, parked)

    def receive_all(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> None:
        mine, theirs = self.pair.both(lambda side: side.inbox.receive(group, arrivals, parked))
        assert [e.id for e in mine.fresh] == [e.id for e in theirs.fresh]
        started = [[(a.envelope.id, a.number) for a in r.started] for r in (mine, theirs)]
        assert started[0] == started[1]
        if mine.started:
            self.batches.append((mine.started, theirs.started))
            self.attempts += zip(mine.started, theirs.started, strict=True)
        assert mine.duplicates == theirs.duplicates
        assert [p.record for p in mine.parked] == [p.record for p in theirs.parked]

    def due(self) -> None:
        group, limit = self.group(), self.draw.choice([1, 3, 100])
        handled = {
            ("t", kind) for kind in self.draw.choice([[*TxKind], [*TxKind], [TxKind.COMMIT]])
        }
        self.pair.same(
            lambda side: [e.id for e in side.inbox.due(group, handled=handled, limit=limit)]
        )
        for name in ("longest_due", "newest_unattempted"):
            self.pair.same(
                lambda side, name=name: getattr(
                    getattr(side.inbox, name)(group, handled=handled), "id", None
                )
            )
        self.pair.same(lambda side: dict(side.inbox.unhandled(group, handled=handled, limit=1000)))

    def start_attempt(self) -> None:
        rows = list(self.pair.memory.database.inbox.values())
        if not rows:
            return
        row = self.draw.choice(rows)
        lease, most = timedelta(seconds=self.seconds()), self.draw.randint(1, 3)
        is_probe = self.draw.random() < 0.2
        mine, theirs = self.pair.both(
            lambda side: side.inbox.start_attempt(
                row.group, row.envelope, lease=lease, max_attempts=most, is_probe=is_probe
            )
        )
        if mine is not None:
            assert (mine.number, mine.exhausted) == (theirs.number, theirs.exhausted)
            self.attempts.append((mine, theirs))

    def effect(self) -> None:
        self.effect_of(self.attempt())

    def take_back_a_parked_event(self) -> None:
        """Receive the rollback of an event that a group has parked, and handle it."""
        parked = [
            row
            for row in self.pair.memory.database.inbox.values()
            if row.status is InboxStatus.DEAD and row.envelope.kind is TxKind.COMMIT
        ]
        if not parked:
            return
        row, before = self.draw.choice(parked), len(self.attempts)
        rollback = self.rollback_of(row.envelope)
        self.receive_all(row.group, [self.arrival(rollback)], [])
        for mine, theirs in self.attempts[before:]:
            self.effect_of(lambda side, m=mine, t=theirs: m if side is self.pair.memory else t)

    def effect_of(self, attempt: Callable[[Any], Any] | None) -> None:
        written_here, breaks = self.draw.random() < 0.7, self.draw.random() < 0.2
        caused = self.events[0].evolve(
            causation_id=self.draw.choice(self.events).id, causation_source="A"
        )

        def apply(side: Any) -> list[Any]:
            mine, seen = attempt(side), []
            with side.inbox.effect(mine) as session:
                cause = side.inbox.cause(session, caused)
                seen.append(None if cause is None else cause.id)
                if mine.envelope.kind is TxKind.ROLLBACK:
                    seen += _compensate(side.inbox, session, mine, written_here=written_here)
                if breaks:
                    raise ArithmeticError
            return seen

        if attempt is not None:
            self.pair.same(apply)

    def effects(self) -> None:
        part, breaks = self.part(), self.draw.random() < 0.2
        refuses, stops = self.draw.random() < 0.4, self.draw.random() < 0.2
        renews = self.draw.random() < 0.5
        first, written = (
            self.events[0].evolve(id=self.pair.new_id(), source="A", biz_key=None) for _ in "ab"
        )

        def apply(side: Any) -> None:
            attempts = part(side)
            with side.inbox.effects(attempts) as session:
                savepoint = side.inbox.savepoint(session)
                side.insert(session.connection(), first)
                if renews:
                    savepoint.renew()
                side.insert(session.connection(), written)
                if refuses and attempts[0].envelope.kind is TxKind.COMMIT:
                    assert savepoint.undo()
                    side.inbox.refuse(session, attempts[0], reason="no")
                else:
                    savepoint.release()
                if stops:
                    side.inbox.settle_only(session, attempts[:1])
                if breaks:
                    raise ArithmeticError

        if part is not None:
            self.pair.same(apply)

    def release(self) -> None:
        part = self.part()
        if part is not None:
            self.pair.same(lambda side: side.inbox.release(part(side)))

    def postpone(self) -> None:
        attempt, delay = self.attempt(), timedelta(seconds=self.seconds())
        if attempt is not None:
            self.pair.same(
                lambda side: side.inbox.postpone(attempt(side), delay=delay, reason="again")
            )

    def defer(self) -> None:
        attempt, delay = self.attempt(), timedelta(seconds=self.seconds())
        if attempt is not None:
            self.pair.same(
                lambda side: side.inbox.defer(attempt(side), delay=delay, reason="not readable")
            )

    def note(self) -> None:
        part = self.part()
        if part is not None:
            self.pair.same(lambda side: side.inbox.note(part(side), reason="the process ends"))

    def give_up(self) -> None:
        attempt, call = self.attempt(), self.draw.choice([None, _breaks, _succeeds])
        parked = self.draw.random() < 0.5
        if attempt is not None:
            self.pair.same(
                lambda side: side.inbox.give_up(
                    attempt(side), reason="enough", in_transaction=call, parked=parked
                )
            )

    # --- paused handlers --------------------------------------------------------------------------

    def pause(self) -> None:
        group, handler = self.group(), self.handler()
        match self.draw.randrange(5):
            case 0:
                who = {"reason": "a look"}
                self.pair.same(lambda side: side.pause(group, handler[0], **who))
            case 1:
                self.pair.same(lambda side: side.resume(group, handler[0]))
            case _:
                first = timedelta(seconds=self.seconds())
                self.pair.same(
                    lambda side: side.pauses.trip(
                        group, handler, reason="TypeError", first_probe=first
                    )
                )
        self.pair.same(lambda side: side.pauses.waiting(group, handler))
        self.pair.same(
            lambda side: side.pauses.has_succeeded(group, handler, within=timedelta(minutes=1))
        )

    def probe(self) -> None:
        group, handler = self.group(), self.handler()
        seconds = timedelta(seconds=self.seconds())
        self.pair.same(lambda side: [_shown(p) for p in side.pauses.pauses(group)])
        mine, theirs = self.pair.both(
            lambda side: side.pauses.claim_probe(group, handler, timeout=seconds)
        )
        if mine is not None:
            assert mine.number == theirs.number
            self.probes.append((mine, theirs))
        if not self.probes:
            return
        claims = self.draw.choice(self.probes[-2:])

        def claim(side: Any) -> Any:
            return claims[0] if side is self.pair.memory else claims[1]

        if self.draw.random() < 0.3:
            self.pair.same(lambda side: side.pauses.close(claim(side)))
        elif self.draw.random() < 0.5:
            reason = self.draw.choice([None, "KeyError"])
            self.pair.same(
                lambda side: side.pauses.settle_probe(claim(side), delay=seconds, reason=reason)
            )

    def handler(self) -> tuple[str, TxKind]:
        return self.draw.choice("tu"), self.draw.choice(list(TxKind))

    def replay(self) -> None:
        rows = list(self.pair.memory.database.inbox.values())
        if rows:
            row = self.draw.choice(rows)
            self.pair.both(lambda side: side.replay(row))

    # --- retention --------------------------------------------------------------------------------

    def purge(self) -> None:
        older, limit = timedelta(seconds=self.seconds()), self.draw.choice([1, 2, 100])
        self.pair.same(lambda side: side.purge.purge_outbox(older_than=older, limit=limit))
        self.pair.same(lambda side: side.purge.purge_inbox(older_than=older, limit=limit))

    # --- random values ----------------------------------------------------------------------------

    def seconds(self) -> float:
        return self.draw.choice([0.5, 2.0, 6.0])

    def relay(self) -> str:
        return self.draw.choice(self.relays)

    def group(self) -> str:
        return self.draw.choice(["g", "g", "h"])

    def arrival(self, envelope: Envelope) -> IncomingEvent:
        lease = timedelta(seconds=self.seconds()) if self.draw.random() < 0.5 else None
        return IncomingEvent(
            envelope=envelope, record=_record(self.draw.randrange(40)), lease=lease
        )

    def part(self) -> Callable[[Any], Any] | None:
        if not self.batches:
            return None
        mine, theirs = self.draw.choice(self.batches[-3:])
        first = self.draw.randrange(len(mine))
        end = self.draw.randint(first + 1, len(mine))
        return lambda side: (mine if side is self.pair.memory else theirs)[first:end]

    def attempt(self) -> Callable[[Any], Any] | None:
        if not self.attempts:
            return None
        mine, theirs = self.draw.choice(self.attempts[-3:])
        return lambda side: mine if side is self.pair.memory else theirs


def _compensate(inbox: Any, session: Any, attempt: Any, *, written_here: bool) -> list[Any]:
    original = inbox.original(session, attempt, written_here=written_here)
    if original is not None and original.status is InboxStatus.DEAD:
        inbox.fence_parked(session, attempt)
        return [original.envelope.id, original.status]
    if original is not None:
        inbox.mark_compensated(session, attempt)
        return [original.envelope.id, original.status, original.compensated]
    if written_here:
        return [None]
    return [inbox.fence(session, attempt), inbox.fence(session, attempt)]


def _shown(pause: Any) -> tuple[Any, ...]:
    fields = (pause.event_type, pause.kind, pause.by, pause.reason)
    return *fields, pause.has_probes, pause.is_probe_due, pause.probes


def _record(offset: int) -> ReceivedRecord:
    return ReceivedRecord(topic="t", partition=0, offset=offset, key=None, value=b"1")


def _breaks(session: object) -> None:
    raise ArithmeticError


def _succeeds(session: object) -> None:
    """Succeed."""
