"""The relays of a history: each claim is compared with the rows before it, and the rows left."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy import Connection, update
from sqlalchemy import event as sqla_event

from shieldtx.ports.broker import BATCH_BYTES
from shieldtx.ports.relay import Retry, Settlement
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.statements import claim as claim_sql
from tests.contract.histories.world import PAST, World
from tests.contract.store.test_blocked_rows import LATER, Clock
from tests.contract.store.test_outbox import LEASE

ALL = 1000
"""More than the events of a history."""
ENDLESS = 2**63
IN_FLIGHT = 3
"""The most claims of one relay at a time."""
ENDS = ("processed", "processed", "processed", "retry", "retry", "unsent", "outage", "fail")
A_LOOK_LATER = 1.1
"""Seconds after which a relay scans its queue again."""


@dataclass
class Batch:
    """The result of one claim, until it is settled."""

    token: UUID
    events: list[tuple[UUID, str | None, str]]

    @property
    def ids(self) -> list[UUID]:
        return [event_id for event_id, _, _ in self.events]


@dataclass
class Relay:
    """A store under a relay's name, and the claims in flight."""

    name: str
    store: SqlRelayStore
    clock: Clock
    batches: deque[Batch] = field(default_factory=deque)

    @property
    def in_flight(self) -> set[UUID]:
        return {event_id for batch in self.batches for event_id in batch.ids}


class RelayPool:
    """Relays that start, die, stall, and settle their claims in every way."""

    def __init__(self, world: World, *, at_most: int) -> None:
        self.world = world
        self.stores = world.stores
        self.chance = world.chance
        self.at_most = at_most
        self.first_claimed: dict[UUID, int] = {}
        self.names = 0
        self.relays = [self.new_relay()]

    def new_relay(self, clock: Clock | None = None) -> Relay:
        self.names += 1
        clock = clock or self.world.clock
        store = SqlRelayStore(
            self.stores.engine,
            self.stores.tables,
            source=self.world.source,
            clock=clock,
        )
        return Relay(f"r{self.names}", store, clock)

    def start_a_relay(self) -> None:
        if len(self.relays) < self.at_most:
            self.relays.append(self.new_relay())

    def kill_a_relay(self) -> None:
        if len(self.relays) > 1:
            self.world.expire(self.relays.pop(self.chance.randrange(len(self.relays))).name)

    def stand_still(self) -> None:
        self.world.expire(self.chance.choice(self.relays).name)

    def publish_for_long(self) -> None:
        """Let the leases of claimed rows expire, while the leases of their shards are renewed."""
        self.world.expire_rows([*self.chance.choice(self.relays).in_flight])

    def renew(self, relay: Relay) -> None:
        holding = self.stores.leases.renew(relay=relay.name, lease=LEASE)
        if holding.surplus and not relay.batches:
            self.stores.leases.release(relay=relay.name, shards=holding.surplus)

    def make_a_pass(self) -> None:
        """Claim, or settle the oldest claim; the next claim may come before that."""
        relay = self.chance.choice(self.relays)
        if self.chance.random() < 0.7:
            self.renew(relay)
        self.go_on(relay, claims=0.3)

    def make_a_chain(self) -> None:
        """Claim, sweep, and settle or release several times, each with a scan of the queue."""
        relay = self.chance.choice(self.relays)
        self.renew(relay)
        self.go_on_for_a_while(relay)

    def go_on_for_a_while(self, relay: Relay) -> None:
        for _ in range(self.chance.randrange(3, 8)):
            relay.clock.now += A_LOOK_LATER
            self.go_on(relay, claims=0.6)

    def refuse(self, relay: Relay) -> None:
        """Let all claimable rows wait for a retry, so that their keys are blocked."""
        self.settle_all(relay)
        self.renew(relay)
        self.claim(relay, limit=ALL)
        self.settle_all(relay, way="retry")

    def let_the_fence_follow(self, relay: Relay) -> None:
        for _ in range(3):
            relay.clock.now += A_LOOK_LATER
            self.claim(relay, limit=ALL)
            self.settle_all(relay, way="processed")

    def release_below_the_fence(self, relay: Relay) -> None:
        """Release rows that were in flight when the fence passed them."""
        self.settle_all(relay)
        self.renew(relay)
        for _ in range(IN_FLIGHT):
            relay.clock.now += A_LOOK_LATER
            self.claim(relay, limit=self.chance.choice([3, ALL]))
        self.release(relay, self.chance.randrange(IN_FLIGHT))
        self.claim(relay)

    def lose_the_shards(self, relay: Relay) -> None:
        """Stall until another relay has taken over, freed some keys and died."""
        successor = self.new_relay(Clock())
        if self.chance.random() < 0.25:
            # An older release has no fence.
            successor.store._blocked.fence.sweep = lambda *_: False  # type: ignore[method-assign]
        self.world.expire(relay.name)
        self.renew(successor)
        self.world.make_due()
        self.claim(successor, limit=ALL)
        self.settle_all(successor, way=self.chance.choice(["processed", "each"]))
        self.go_on_for_a_while(successor)
        self.world.expire(successor.name)
        # If hardly any time has passed, the relay claims before it sweeps.
        relay.clock.now += self.chance.choice([0, A_LOOK_LATER])
        self.renew(relay)
        self.claim(relay)

    def go_on(self, relay: Relay, *, claims: float) -> None:
        is_full = len(relay.batches) >= IN_FLIGHT
        if not relay.batches or (not is_full and self.chance.random() < claims):
            self.claim(relay)
        elif self.chance.random() < 0.3:
            self.release(relay, self.chance.randrange(len(relay.batches)))
        else:
            self.settle(relay)

    def claim(self, relay: Relay, limit: int | None = None) -> int:
        limit = limit or self.chance.choice([1, 3, 10, 50, 50])
        claimed = relay.store.claim(relay=relay.name, limit=limit)
        events = [(c.envelope.id, c.envelope.key, c.envelope.source) for c in claimed.events]
        batch = Batch(claimed.token, events)
        fence = relay.store._blocked.fence
        self.world.note(f"{relay.name} claims {len(events)} of {limit}, fence {fence.seq}")
        self.refuse_overtaking(relay, batch.ids)
        self.refuse_passed_rows(relay, batch.ids, limit)
        self.world.unnoticed.difference_update(batch.ids)
        if events:
            relay.batches.append(batch)
        return len(events)

    def refuse_overtaking(self, relay: Relay, claimed: Sequence[UUID]) -> None:
        """Fail if an earlier event of a key is neither claimed too nor in flight here."""
        if not claimed:
            return
        world, with_these = self.world, set(claimed) | relay.in_flight
        rows = world.open_rows()
        of_id = {row.event_id: row for row in rows}
        for event_id in claimed:
            first = self.first_claimed.setdefault(event_id, world.step)
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
                and r.event_id not in world.put_back
                # A row committed after this event was claimed cannot precede it any more.
                and world.visible[r.event_id] <= first
            ]
            world.require(not overtaken, f"{row.seq} of {row.key} overtakes {overtaken}")

    def refuse_passed_rows(self, relay: Relay, claimed: Sequence[UUID], limit: int) -> None:
        """Fail if a claim without a fence would find a row that this claim has passed."""
        store = relay.store
        everything = claim_sql.parameters(
            relay=relay.name,
            token=uuid4(),
            limit=ALL,
            limit_bytes=BATCH_BYTES,
            start=0,
            known=0,
            source=self.world.source,
        )
        with self.stores.engine.connect() as connection:
            # The claim is undone when the connection closes.
            left = connection.execute(store._claim, everything).all()
        upto = ENDLESS
        if len(claimed) >= limit:
            rows = self.world.open_rows()
            upto = max((r.seq for r in rows if r.event_id in claimed and not r.waiting), default=0)
        not_found = relay.in_flight | self.world.unnoticed
        passed = [
            row.seq
            for row in left
            if not row.waiting and row.seq < upto and row.event_id not in not_found
        ]
        self.world.require(not passed, f"a claim of {relay.name} passes over {sorted(passed)}")

    def settle(self, relay: Relay, way: str = "") -> None:
        """Settle the oldest claim; unless all of it is processed, release the claims after it."""
        batch = relay.batches.popleft()
        way = way or self.chance.choice(["processed", "outage", "each", "each"])
        ends = self.ends_of(batch, way)
        ids = {end: [e for e, of_it in ends.items() if of_it == end] for end in ENDS}
        settlement = Settlement(
            processed=ids["processed"],
            unsent=ids["unsent"],
            unconfirmed=ids["outage"],
            retries=[Retry(event_id=e, delay=LATER, reason="no topic") for e in ids["retry"]],
            reason="refused",
        )
        if len(settlement):
            relay.store.settle(batch.token, settlement)
        for event_id in ids["fail"]:
            relay.store.fail(batch.token, event_id, reason="refused", local_rollback=None)
        self.world.note(f"{relay.name} settles {len(batch.events)}: {way}")
        if len(ids["processed"]) < len(batch.events):
            self.release(relay, 0)

    def ends_of(self, batch: Batch, way: str) -> dict[UUID, str]:
        """Draw the outcome of each event; later events of a key that waits are not sent."""
        ends, stopped = {}, set()
        for event_id, key, source in batch.events:
            end = self.chance.choice(ENDS) if way == "each" else way
            if (key, source) in stopped and end in {"processed", "retry"}:
                end = "unsent"
            if key is not None and end not in {"processed", "fail"}:
                stopped.add((key, source))
            ends[event_id] = end
        return ends

    def release(self, relay: Relay, after: int) -> None:
        """Release all claims except the first few, whose outcomes are still unknown."""
        others = [*relay.batches][after:]
        if others:
            self.world.note(f"{relay.name} releases {len(others)} claims")
        for batch in others:
            relay.batches.remove(batch)
            relay.store.settle(batch.token, Settlement(unsent=batch.ids, reason="held back"))

    def lose_an_answer(self) -> None:
        """Claim, lose the response, and take another name."""
        relay = self.chance.choice(self.relays)
        while relay.batches:
            self.settle(relay)
        relay.store.claim(relay=relay.name, limit=self.chance.choice([1, 10]))
        self.names += 1
        renamed = f"r{self.names}"
        relay.store.withdraw(relay=relay.name, renamed=renamed)
        relay.name = renamed

    def lose_the_shards_in_a_look(self, relay: Relay) -> None:
        """Let leases expire during a sweep; a renewal that waits for the sweep extends them."""
        s = self.stores.tables.shard
        self.renew(relay)

        def extend(connection: Connection, until: datetime) -> None:
            mine = update(s).where(s.c.owner == relay.name)
            connection.execute(mine.values(lease_until=until))

        def run_out(by: Connection, __: object, statement: str, *___: object) -> None:
            if "looked_at" in statement:
                # In the transaction of the sweep, which has locked the rows.
                extend(by, datetime.now(UTC) - PAST)

        relay.clock.now += A_LOOK_LATER
        sqla_event.listen(self.stores.engine, "before_cursor_execute", run_out)
        try:
            relay.store._blocked.run_if_due(relay.name)
        finally:
            sqla_event.remove(self.stores.engine, "before_cursor_execute", run_out)
        with self.stores.engine.begin() as connection:
            extend(connection, datetime.now(UTC) + LEASE)
        self.claim(relay)

    def stop_all_but_one(self) -> Relay:
        relay, *others = self.relays
        for other in others:
            self.world.expire(other.name)
        self.relays = [relay]
        return relay

    def settle_all(self, relay: Relay, way: str = "") -> None:
        while relay.batches:
            self.settle(relay, way)
