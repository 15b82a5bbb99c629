"""Random histories of relays whose fences move all the time: no event overtakes, none is lost."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.engine import RootTransaction

from shieldtx.buffer import Posting
from shieldtx.delays import Due
from shieldtx.events import Envelope
from shieldtx.ports import Retry, Settlement
from shieldtx.ports.half import Preparation
from shieldtx.states import LocalOutcome, OutboxStatus
from shieldtx.store import blocked, fence
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.delayed_store import SqlDelayedStore
from shieldtx.store.outbox_store import SqlOutboxStore
from shieldtx.store.statements import outbox as statements
from shieldtx.store.statements import repairs
from tests.contract.conftest import Stores
from tests.contract.test_blocked_rows import LATER, Clock
from tests.contract.test_outbox_stores import LEASE, envelope, write

SEEDS = (115, 130)
STEPS = 60
HELD = "held"
"""The first event of this key waits until the end, so that there is always a fence."""
KEYS = ("a", "b", "c", None, HELD)
PAST = timedelta(days=1)


class TickingClock(Clock):
    """Moves on by itself, so that looks run out of time in the middle."""

    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@dataclass
class Batch:
    """What one claim returned, until it is settled."""

    token: UUID
    events: list[tuple[UUID, str | None, str]]


@dataclass
class Relay:
    """A store under a relay's name, and the claims in flight."""

    name: str
    store: SqlOutboxStore
    batches: deque[Batch] = field(default_factory=deque)

    @property
    def in_flight(self) -> set[UUID]:
        return {event_id for batch in self.batches for event_id, _, _ in batch.events}


@dataclass
class Late:
    """An open transaction, and the events that it wrote."""

    connection: Connection
    transaction: RootTransaction
    written: list[UUID]


class History:
    """Random operations on one outbox; each claim is compared with the rows before it."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stores = stores
        self.clock = TickingClock()
        self.clock.step = self.chance.choice([0, 0, 0.01, 0.06])
        self.names = 0
        self.step = 0
        self.visible: dict[UUID, int] = {}
        """The step at which each event was committed."""
        self.first_claimed: dict[UUID, int] = {}
        self.put_back: set[UUID] = set()
        """By an operator: later events of the key may pass these."""
        self.late: list[Late] = []
        self.halves: list[UUID] = []
        self.log: list[str] = []
        self.relays = [self.new_relay()]
        [self.head] = self.write(self.envelope(HELD))
        self.renew(self.relays[0])
        claimed = self.relays[0].store.claim(relay=self.relays[0].name, limit=1)
        retry = Retry(event_id=self.head, delay=LATER, reason="no topic")
        self.relays[0].store.settle(claimed.token, Settlement(retries=[retry]))
        self.first_claimed[self.head] = 0

    # --- what the services and operators do ---------------------------------------------------

    def envelope(self, key: str | None = "", **more: Any) -> Envelope:
        source = self.chance.choice(["things", "things", "others"]) if key != HELD else "things"
        return envelope(self.chance.choice(KEYS) if key == "" else key, source=source, **more)

    def envelopes(self) -> list[Envelope]:
        return [self.envelope() for _ in range(self.chance.randrange(1, 6))]

    def write(self, *envelopes: Envelope, **due: Any) -> list[UUID]:
        written = write(self.stores, *envelopes, **due)
        self.visible |= dict.fromkeys(written, self.step)
        return written

    def write_some(self) -> None:
        self.write(*self.envelopes())

    def write_delayed(self) -> None:
        self.write(*self.envelopes(), delay=LATER)

    def begin_late(self) -> None:
        if len(self.late) < 2:
            connection = self.stores.engine.connect()
            late = Late(connection, connection.begin(), [])
            self.late.append(late)
            self.write_late(late)

    def write_late(self, late: Late) -> None:
        envelopes = self.envelopes()
        postings = [Posting(envelope=e) for e in envelopes]
        self.stores.writer.insert(late.connection, postings)
        late.written += [e.id for e in envelopes]

    def go_on_late(self) -> None:
        if self.late:
            self.write_late(self.chance.choice(self.late))

    def end_late(self) -> None:
        if self.late:
            late = self.late.pop(self.chance.randrange(len(self.late)))
            if self.chance.random() < 0.2:
                late.transaction.rollback()
            else:
                late.transaction.commit()
                self.visible |= dict.fromkeys(late.written, self.step)
            late.connection.close()

    def prepare_half(self) -> None:
        message = self.envelope()
        self.stores.half.prepare([Preparation(envelope=message)])
        self.halves.append(message.id)

    def end_half(self) -> None:
        if self.halves:
            event_id = self.halves.pop(self.chance.randrange(len(self.halves)))
            is_committed = self.chance.random() < 0.8
            outcome = LocalOutcome.COMMIT if is_committed else LocalOutcome.ROLLBACK
            self.stores.half.resolve([event_id], outcome)
            if is_committed:
                self.visible[event_id] = self.step

    def change_delayed(self) -> None:
        o = self.stores.tables.outbox
        delayed = self.some_event(o.c.waiting, ~o.c.holds_key, o.c.status == "INIT")
        if delayed is None:
            return
        with self.stores.engine.begin() as connection:
            desk = SqlDelayedStore(self.stores.tables)
            if self.chance.random() < 0.5:
                desk.cancel(connection, delayed, who="ann")
            else:
                due = Due(at=datetime.now(UTC) + timedelta(minutes=5))
                desk.reschedule(connection, delayed, due, who="ann")

    def put_an_event_back(self) -> None:
        t, d = self.stores.tables, self.relays[0].store._dialect
        status = self.chance.choice([OutboxStatus.FAILED, OutboxStatus.PROCESSED])
        event_id = self.some_event(t.outbox.c.status == status.value)
        if event_id is None:
            return
        self.put_back.add(event_id)
        with self.stores.engine.begin() as connection:
            if status is OutboxStatus.FAILED:
                connection.execute(statements.replay(t, d, event_id))
            else:
                connection.execute(repairs.publish_again(t, d, [event_id]))

    def release_events(self) -> None:
        t, d = self.stores.tables, self.relays[0].store._dialect
        event_id = self.some_event(t.outbox.c.status == OutboxStatus.PROCESSING.value)
        if event_id is not None:
            with self.stores.engine.begin() as connection:
                connection.execute(repairs.release_events(t, d, [event_id]))

    def some_event(self, *conditions: Any) -> UUID | None:
        o = self.stores.tables.outbox
        with self.stores.engine.connect() as connection:
            found = select(o.c.event_id).where(*conditions).order_by(o.c.seq)
            events = connection.scalars(found).all()
        return self.chance.choice(events) if events else None

    def make_due(self) -> None:
        o = self.stores.tables.outbox
        due = update(o).where(o.c.waiting, o.c.status == "INIT", o.c.event_id != self.head)
        with self.stores.engine.begin() as connection:
            connection.execute(due.values(due_at=o.c.created_at))

    def pass_time(self) -> None:
        self.clock.now += self.chance.choice([0.3, 0.6, 0.6, 1.5, 1.5, 5])

    # --- what the relays do -------------------------------------------------------------------

    def new_relay(self) -> Relay:
        self.names += 1
        store = SqlOutboxStore(self.stores.engine, self.stores.tables, clock=self.clock)
        if self.names > 1 and self.chance.random() < 0.25:
            # An older release knows no fence.
            store._blocked.fence.sweep = lambda *_: False  # type: ignore[method-assign]
        return Relay(f"r{self.names}", store)

    def start_a_relay(self) -> None:
        if len(self.relays) < 3:
            self.relays.append(self.new_relay())

    def kill_a_relay(self) -> None:
        if len(self.relays) > 1:
            self.expire(self.relays.pop(self.chance.randrange(len(self.relays))))

    def stand_still(self) -> None:
        self.expire(self.chance.choice(self.relays))

    def expire(self, relay: Relay) -> None:
        """Let the leases of a relay run out."""
        s, r, o = self.stores.tables.shard, self.stores.tables.relay, self.stores.tables.outbox
        past = datetime.now(UTC) - timedelta(minutes=1)
        with self.stores.engine.begin() as connection:
            owned = select(s.c.shard).where(s.c.owner == relay.name)
            rows = update(o).where(o.c.shard.in_(owned), o.c.lease_until.is_not(None))
            connection.execute(rows.values(lease_until=past))
            mine = update(s).where(s.c.owner == relay.name)
            connection.execute(mine.values(lease_until=past))
            alive = update(r).where(r.c.relay == relay.name)
            connection.execute(alive.values(alive_until=past))

    def renew(self, relay: Relay) -> None:
        holding = self.stores.leases.renew(relay=relay.name, lease=LEASE)
        if holding.surplus and not relay.batches:
            self.stores.leases.give_back(relay=relay.name, shards=holding.surplus)

    def make_a_pass(self) -> None:
        """Claim, or settle the oldest claim; of a clean one, the next may be claimed before."""
        relay = self.chance.choice(self.relays)
        if self.chance.random() < 0.7:
            self.renew(relay)
        if not relay.batches or (self.chance.random() < 0.3 and len(relay.batches) < 2):
            self.claim(relay)
        else:
            self.settle(relay)

    def claim(self, relay: Relay, limit: int | None = None) -> int:
        limit = limit or self.chance.choice([1, 2, 3, 10, 50])
        claimed = relay.store.claim(relay=relay.name, limit=limit)
        events = [(c.envelope.id, c.envelope.key, c.envelope.source) for c in claimed.events]
        self.note(f"{relay.name} claims {len(events)}, fence {relay.store._blocked.fence.seq}")
        if events:
            self.check(relay, [event_id for event_id, _, _ in events])
            relay.batches.append(Batch(claimed.token, events))
        return len(events)

    def check(self, relay: Relay, claimed: Sequence[UUID]) -> None:
        """Fail where an earlier event of a key is neither claimed too, nor in flight here."""
        with_these = set(claimed) | relay.in_flight
        rows = self.open_rows()
        of_id = {row.event_id: row for row in rows}
        for event_id in claimed:
            first = self.first_claimed.setdefault(event_id, self.step)
            row = of_id[event_id]
            if row.key is None or row.is_chosen:
                continue
            overtaken = [
                r.seq
                for r in rows
                if (r.key, r.source) == (row.key, row.source)
                and r.seq < row.seq
                and not r.is_chosen
                and r.event_id not in with_these
                and r.event_id not in self.put_back
                # What was committed after this event was claimed has missed its turn.
                and self.visible[r.event_id] <= first
            ]
            assert not overtaken, f"{row.seq} of {row.key} overtakes {overtaken}: {self.told()}"

    def open_rows(self) -> Sequence[Any]:
        o = self.stores.tables.outbox
        is_chosen = (o.c.waiting & ~o.c.holds_key).label("is_chosen")
        columns = (o.c.event_id, o.c.seq, o.c.key, o.c.source, is_chosen)
        found = select(*columns).where(o.c.settled_at.is_(None), o.c.status != "HALF")
        with self.stores.engine.connect() as connection:
            return connection.execute(found.order_by(o.c.seq)).all()

    def settle(self, relay: Relay, *, well: bool = False) -> None:
        """Settle the oldest claim; where it does not end well, release the one after it."""
        batch = relay.batches.popleft()
        way = "processed" if well else self.chance.choice(["processed", "outage", "each", "each"])
        is_clean, processed, unsent, unconfirmed, failed = True, [], [], [], []
        retries, stopped = [], set()
        for event_id, key, source in batch.events:
            end = way
            if way == "each":
                end = self.chance.choice(["processed"] * 4 + ["retry", "unsent", "outage", "fail"])
            if key is not None and (key, source) in stopped and end in {"processed", "retry"}:
                end = "unsent"
            if end == "processed":
                processed.append(event_id)
                continue
            is_clean = False
            if end == "fail":
                failed.append(event_id)
                continue
            stopped.add((key, source))
            if end == "retry":
                retries.append(Retry(event_id=event_id, delay=LATER, reason="no topic"))
            else:
                (unsent if end == "unsent" else unconfirmed).append(event_id)
        settlement = Settlement(
            processed=processed,
            unsent=unsent,
            unconfirmed=unconfirmed,
            retries=retries,
            reason="refused",
        )
        if len(settlement):
            relay.store.settle(batch.token, settlement)
        for event_id in failed:
            relay.store.fail(batch.token, event_id, reason="refused", local_rollback=None)
        self.note(f"{relay.name} settles {len(batch.events)}: {way}")
        if not is_clean and relay.batches:
            ahead = relay.batches.popleft()
            ids = [event_id for event_id, _, _ in ahead.events]
            relay.store.settle(ahead.token, Settlement(unsent=ids, reason="held back"))

    def lose_an_answer(self) -> None:
        """Claim, learn nothing of it, and take another name."""
        relay = self.chance.choice(self.relays)
        while relay.batches:
            self.settle(relay)
        relay.store.claim(relay=relay.name, limit=self.chance.choice([1, 10]))
        self.names += 1
        renamed = f"r{self.names}"
        relay.store.withdraw(relay=relay.name, renamed=renamed)
        relay.name = renamed

    # --- the whole ----------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        common = [self.make_a_pass] * 16 + [self.write_some] * 4 + [self.pass_time] * 8
        rare = [
            *(self.begin_late, self.go_on_late, self.end_late, self.end_late, self.make_due),
            *(self.make_due, self.prepare_half, self.end_half, self.write_delayed),
            *(self.change_delayed, self.put_an_event_back, self.release_events),
            *(self.start_a_relay, self.kill_a_relay, self.stand_still, self.lose_an_answer),
        ]
        for self.step in range(1, steps + 1):
            step = self.chance.choice(common + rare)
            self.note(step.__name__)
            step()

    def drain(self) -> None:
        """Publish all that one relay gets, until it has looked in vain for long."""
        relay = self.relays.pop(0)
        for other in self.relays:
            self.expire(other)
        self.relays = [relay]
        while relay.batches:
            self.settle(relay)
        idle = 0
        while idle < 8:
            self.step += 1
            self.make_due()
            self.renew(relay)
            idle = 0 if self.claim(relay, limit=50) else idle + 1
            while relay.batches:
                self.settle(relay, well=True)
            self.clock.now += 4

    def left(self) -> list[int]:
        """Return the numbers of events that a claim without a fence would find, or soon."""
        rows = self.open_rows()
        [head] = [row for row in rows if row.event_id == self.head] or [None]
        return [
            row.seq
            for row in rows
            if head is None
            or not ((row.key, row.source) == (head.key, head.source) and row.seq >= head.seq)
        ]

    def note(self, what: str) -> None:
        self.log.append(f"{self.step}: {what}")

    def told(self) -> str:
        return "\n".join(["", *self.log])

    def close(self) -> None:
        for late in self.late:
            late.connection.close()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "RESWEEP_S", 3.0)
    monkeypatch.setattr(fence, "SHARE", 2)
    monkeypatch.setattr(blocked, "SHARE", 2)


@pytest.fixture
def history(
    stores: Stores, seed: int, monkeypatch: pytest.MonkeyPatch, _small: None
) -> Iterator[History]:
    chance = random.Random(-seed)
    monkeypatch.setattr(fence, "WINDOW", chance.choice([1, 2, 3, 7, 50_000]))
    monkeypatch.setattr(blocked, "WINDOW", chance.choice([1, 2, 3, 50]))
    if chance.random() < 0.5:
        # Only the first row behind each key is blocked, so that claims rely on the fence.
        monkeypatch.setattr(BlockedRows, "_block", lambda *_: None)
    history = History(stores, seed)
    yield history
    history.close()


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_event_overtakes_and_none_is_lost(history: History) -> None:
    history.play(STEPS)
    # An open transaction keeps the fence from going on.
    history.begin_late()
    history.put_an_event_back()
    history.drain()
    assert history.left() == [], history.told()
    while history.late:
        history.end_late()
    history.drain()
    assert history.left() == [], history.told()
    history.head = UUID(int=0)
    history.drain()
    assert history.open_rows() == [], history.told()
