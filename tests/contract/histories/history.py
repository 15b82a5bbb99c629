"""One random history of an outbox, drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shieldtx.ports.relay import Retry, Settlement
from shieldtx.store import blocked, fence
from shieldtx.store.blocked import BlockedRows
from tests.contract.conftest import Stores
from tests.contract.histories.relays import A_LOOK_LATER, Relay, RelayPool
from tests.contract.histories.services import Services
from tests.contract.histories.world import HELD, NO_EVENT, World
from tests.contract.store.test_blocked_rows import LATER

STEPS = 24
NEVER = 1e9
SOON = 3.0


def play(stores: Stores, seed: int) -> None:
    """Play a whole history; raise a Violation that names the seed."""
    with pytest.MonkeyPatch.context() as patch:
        history = History(stores, seed, patch)
        try:
            history.play()
        finally:
            history.services.close()


class History:
    """Random steps of relays and services, until every event is published."""

    def __init__(self, stores: Stores, seed: int, patch: pytest.MonkeyPatch) -> None:
        chance = random.Random(seed)
        patch.setattr(fence, "WINDOW", chance.choice([2, 3, 7, 50_000]))
        patch.setattr(blocked, "WINDOW", chance.choice([2, 3, 50]))
        # A sweep from the beginning would find the rows that the others have passed.
        patch.setattr(fence, "RESWEEP_S", chance.choice([NEVER, NEVER, NEVER, SOON]))
        patch.setattr(fence, "SHARE", 2)
        patch.setattr(blocked, "SHARE", 2)
        if chance.random() < 0.8:
            # Only the first row after each blocked key is blocked, so that claims rely on the
            # fence.
            patch.setattr(BlockedRows, "_block", lambda *_: None)
        self.patch = patch
        self.world = World(
            stores=stores,
            seed=seed,
            chance=chance,
            keys=chance.choice([("a",), ("a", "b"), ("a", "b", "c", None)]),
            source=chance.choice([None, None, None, "things"]),
        )
        self.world.clock.step = chance.choice([0, 0, 0.01, 0.06])
        self.world.empty()
        self.services = Services(self.world)
        self.pool = RelayPool(self.world, at_most=chance.choice([1, 1, 2, 3]))
        self.hold_a_key()

    def hold_a_key(self) -> None:
        [self.world.head] = self.services.write(self.services.envelope(HELD))
        [relay] = self.pool.relays
        self.pool.renew(relay)
        claimed = relay.store.claim(relay=relay.name, limit=1)
        retry = Retry(event_id=self.world.head, delay=LATER, reason="no topic")
        relay.store.settle(claimed.token, Settlement(retries=[retry]))
        self.pool.first_claimed[self.world.head] = 0

    def play(self) -> None:
        self.make_steps()
        # An open transaction stops the fence.
        self.services.begin_late()
        self.services.put_an_event_back()
        self.patch.setattr(fence, "RESWEEP_S", SOON)
        self.drain()
        self.require_none(self.left())
        while self.services.late:
            self.services.end_late()
        self.drain()
        self.require_none(self.left())
        self.world.head = NO_EVENT
        self.drain()
        self.require_none(self.world.open_rows())

    def make_steps(self) -> None:
        some, all_ = self.services, self.pool
        steps = [
            *[all_.make_a_pass] * 5,
            *[all_.make_a_chain] * 4,
            *[some.write_some] * 3,
            *[self.pass_time] * 3,
            self.pile_up,
            *[self.release_below_the_fence] * 3,
            *[self.lose_the_shards] * 3,
            *[self.lose_the_shards_in_a_look] * 3,
            *[self.write_late_beside_a_sweep] * 3,
            *(some.begin_late, some.go_on_late, some.end_late),
            *(self.world.make_due, self.world.make_due, some.write_delayed, some.change_delayed),
            *(some.prepare_half, some.end_half, some.put_an_event_back, some.release_events),
            *(all_.start_a_relay, all_.kill_a_relay, all_.stand_still, all_.lose_an_answer),
            all_.publish_for_long,
        ]
        self.pile_up()
        for self.world.step in range(1, STEPS + 1):
            step = self.world.chance.choice(steps)
            self.world.note(step.__name__)
            step()

    def pile_up(self) -> Relay:
        """Block some keys, let rows pile up after them, and let a fence pass those rows."""
        relay = self.world.chance.choice(self.pool.relays)
        self.services.write_some()
        self.pool.refuse(relay)
        self.services.write_some()
        self.services.write(self.services.envelope(HELD))
        self.pool.let_the_fence_follow(relay)
        return relay

    def lose_the_shards(self) -> None:
        self.pool.lose_the_shards(self.pile_up())

    def lose_the_shards_in_a_look(self) -> None:
        relay = self.pile_up()
        self.services.write(*(self.services.envelope("fresh") for _ in range(3)))
        relay.clock.now += A_LOOK_LATER
        self.pool.claim(relay, limit=1)
        self.pool.lose_the_shards_in_a_look(relay)

    def release_below_the_fence(self) -> None:
        self.services.write_some()
        self.services.write(*(self.services.envelope(key) for key in ("fresh", HELD)))
        self.pool.release_below_the_fence(self.world.chance.choice(self.pool.relays))

    def write_late_beside_a_sweep(self) -> None:
        relay = self.world.chance.choice(self.pool.relays)
        self.pool.settle_all(relay)
        self.services.begin_late()
        self.services.write(self.services.envelope(HELD))
        self.pool.let_the_fence_follow(relay)
        self.services.end_late()
        self.pool.claim(relay)

    def pass_time(self) -> None:
        self.world.clock.now += self.world.chance.choice([0.3, 0.6, 0.6, 1.5, 1.5, 5])

    def drain(self) -> None:
        """Publish all events that one relay can claim, until its claims are empty for long."""
        relay = self.pool.stop_all_but_one()
        self.pool.settle_all(relay)
        idle = 0
        while idle < 5:
            self.world.step += 1
            self.world.make_due()
            self.pool.renew(relay)
            idle = 0 if self.pool.claim(relay, limit=50) else idle + 1
            self.pool.settle_all(relay, way="processed")
            self.world.clock.now += 4

    def left(self) -> list[Any]:
        """Return the events that a claim without a fence would find, now or soon."""
        rows = self.world.open_rows()
        [head] = [row for row in rows if row.event_id == self.world.head] or [None]
        return [
            row
            for row in rows
            if head is None
            or not ((row.key, row.source) == (head.key, head.source) and row.seq >= head.seq)
        ]

    def require_none(self, rows: Any) -> None:
        self.world.require(not rows, f"never claimed: {[row.seq for row in rows]}")
