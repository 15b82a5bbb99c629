"""Rows after a blocked key leave the main queue of the claims, and return in order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import and_, func, not_, select, text, update
from sqlalchemy import event as sqla_event
from sqlalchemy.exc import OperationalError

from shieldtx.ports.relay import Claim, ClaimedEvent, Retry, Settlement
from shieldtx.store import blocked, fence
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.relay_store import SqlRelayStore
from tests.contract.conftest import SHARDS, UNINDEXED, Stores, with_settings
from tests.contract.store.test_outbox import (
    LEASE,
    claim,
    column,
    envelope,
    ids,
    let_all_leases_run_out,
    write,
)
from tests.support.log_records import logged

LATER = timedelta(hours=1)


class Clock:
    """The clock of the store; a test sets it."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(stores: Stores, clock: Clock) -> Stores:
    return restarted(stores, clock)


def restarted(stores: Stores, clock: Clock) -> Stores:
    """Give the relay a new store without any state."""
    return replace(stores, outbox=SqlRelayStore(stores.engine, stores.tables, clock=clock))


def count(stores: Stores, *, waiting: bool, holds_key: bool) -> int:
    o = stores.tables.outbox
    is_so = and_(
        o.c.settled_at.is_(None),
        o.c.waiting if waiting else not_(o.c.waiting),
        o.c.holds_key if holds_key else not_(o.c.holds_key),
    )
    with stores.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(o).where(is_so))


def in_main_queue(stores: Stores) -> int:
    return count(stores, waiting=False, holds_key=False)


def refuse(stores: Stores, claimed: Claim, delay: timedelta = LATER) -> None:
    retries = [Retry(event_id=e, delay=delay, reason="no topic") for e in ids(claimed)]
    stores.outbox.settle(claimed.token, Settlement(retries=retries))


def make_due(stores: Stores) -> None:
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        connection.execute(update(o).where(o.c.waiting).values(due_at=o.c.created_at))


def with_a_held_key(stores: Stores, clock: Clock, *, behind: int) -> tuple[UUID, list[UUID]]:
    [head] = write(stores, envelope("k"))
    refuse(stores, claim(stores))
    rest = write(stores, *(envelope("k") for _ in range(behind)))
    clock.now += 100
    assert ids(claim(stores)) == []
    return head, rest


def test_rows_after_a_blocked_key_leave_the_main_queue(stores: Stores, clock: Clock) -> None:
    with_a_held_key(stores, clock, behind=5)
    assert in_main_queue(stores) == 0
    assert count(stores, waiting=False, holds_key=True) == 5
    [other] = write(stores, envelope("another"))
    assert ids(claim(stores)) == [other]


@pytest.mark.parametrize("end", ["processed", "failed"])
def test_blocked_rows_return_in_order_when_the_key_is_free(
    stores: Stores, clock: Clock, end: str
) -> None:
    head, rest = with_a_held_key(stores, clock, behind=5)
    last = write(stores, envelope("k"))
    make_due(stores)
    again = claim(stores)
    assert ids(again) == [head]
    if end == "processed":
        stores.outbox.settle(again.token, Settlement(processed=[head]))
    else:
        assert stores.outbox.fail(again.token, head, reason="enough", local_rollback=None)
    # At once, without a scan.
    assert ids(claim(stores)) == rest + last
    assert count(stores, waiting=False, holds_key=True) == 0


def test_a_later_row_waits_for_a_blocked_row_of_its_key(stores: Stores, clock: Clock) -> None:
    head, rest = with_a_held_key(stores, clock, behind=2)
    make_due(stores)
    claimed = claim(stores)
    stores.outbox.settle(claimed.token, Settlement(processed=[head]))
    [last] = write(stores, envelope("k"))
    # The relay died right after the settlement: the next relay does not know the freed keys.
    heir = restarted(stores, clock)
    heir.outbox._blocked._next_scan = clock.now + 1
    assert ids(claim(heir)) == []
    clock.now += 2
    assert ids(claim(heir)) == [*rest, last]


def test_keys_are_distinct_and_keyless_rows_are_never_blocked(stores: Stores, clock: Clock) -> None:
    write(stores, envelope(None), envelope("a"), envelope("b"))
    refuse(stores, claim(stores))
    keyless, _, _ = write(stores, envelope(None), envelope("a"), envelope("b"))
    clock.now += 100
    assert ids(claim(stores)) == [keyless]
    assert count(stores, waiting=False, holds_key=True) == 2


def test_nothing_is_blocked_in_another_relays_shards(stores: Stores, clock: Clock) -> None:
    with_a_held_key(stores, clock, behind=1)
    write(stores, *(envelope("k") for _ in range(3)))
    clock.now += 100
    assert stores.outbox.claim(relay="another", limit=10).events == []
    assert in_main_queue(stores) == 3


def test_blocked_key_blocks_its_rows_with_a_single_owned_shard(
    stores: Stores, clock: Clock
) -> None:
    head, rest = with_a_held_key(stores, clock, behind=2)
    unblocked = write(stores, envelope("k"))
    s = stores.tables.shard
    with stores.engine.begin() as connection:
        others = update(s).where(s.c.shard != column(stores, "shard", head))
        connection.execute(others.values(owner="another"))
    assert ids(stores.outbox.claim(relay="me", limit=10)) == []
    assert not any(column(stores, "attempts", e) for e in [*rest, *unblocked])


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_first_holder_of_a_key_counts_at_any_row_position(stores: Stores, clock: Clock) -> None:
    head, [unblocked, _] = with_a_held_key(stores, clock, behind=2)
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        freed = update(o).where(o.c.event_id == unblocked)
        connection.execute(freed.values(holds_key=False))
        # A new version of the row, after the other rows.
        connection.execute(update(o).where(o.c.event_id == head).values(last_error="moved"))
    with with_settings(stores, **UNINDEXED) as unindexed:
        assert ids(claim(unindexed)) == []


def test_hot_key_returns_in_windows_up_to_a_waiting_row(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "WINDOW", 3)
    head, rest = with_a_held_key(stores, clock, behind=10)
    make_due(stores)
    again = claim(stores)
    stores.outbox.settle(again.token, Settlement(processed=[head]))
    # As if it had arrived late: the rows before it return, the rows after it stay.
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        late = update(o).where(o.c.event_id == rest[7])
        connection.execute(late.values(waiting=True, due_at=datetime.now(UTC) + LATER))
    assert ids(claim(stores)) == rest[:7]
    assert count(stores, waiting=False, holds_key=True) == 2


@pytest.mark.parametrize("noticed", [True, False])
def test_freed_rows_return_in_steps_between_claims(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    keys = [f"k{n}" for n in range(2 * SHARDS)]
    heads = write(stores, *map(envelope, keys))
    refuse(stores, claim(stores))
    rest = write(stores, *map(envelope, keys))
    clock.now += 100
    assert ids(claim(stores)) == []
    monkeypatch.setattr(blocked, "BUDGET_S", 0.0)
    monkeypatch.setattr(blocked, "_KEYS_TOGETHER", 1)
    make_due(stores)
    again = claim(stores)
    settling = stores if noticed else restarted(stores, clock)
    assert settling.outbox.settle(again.token, Settlement(processed=heads)) == len(heads)
    # The store's clock stands still: each scan ends as soon as it has made a step.
    taken, steps = [], 0
    while len(taken) < len(rest):
        if not noticed:
            clock.now += blocked.SCAN_INTERVAL_S
        found = ids(claim(stores))
        assert len(found) < len(rest)
        taken += found
        steps += bool(found)
        assert len(stores.outbox._blocked._to_scan) <= SHARDS
    assert sorted(taken) == sorted(rest)
    assert steps > 1


def test_a_row_of_another_source_keeps_none_blocked(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "WINDOW", 3)
    [other] = write(stores, envelope("k", source="another"))
    refuse(stores, claim(stores))
    head, rest = with_a_held_key(stores, clock, behind=5)
    [behind] = write(stores, envelope("k", source="another"))
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        due = update(o).where(o.c.event_id == head)
        connection.execute(due.values(due_at=o.c.created_at))
    again = claim(stores)
    assert ids(again) == [head]
    stores.outbox.settle(again.token, Settlement(processed=[head]))
    assert ids(claim(stores)) == rest
    clock.now += 100
    assert ids(claim(stores)) == []
    assert column(stores, "holds_key", behind)
    assert column(stores, "waiting", other)


def test_failed_move_of_blocked_rows_does_not_stop_the_claim(
    stores: Stores, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    head, rest = with_a_held_key(stores, clock, behind=3)
    make_due(stores)
    again = claim(stores)
    stores.outbox.settle(again.token, Settlement(processed=[head]))
    [other] = write(stores, envelope("another"))

    def time_out(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("UPDATE") and "SET holds_key" in statement:
            raise OperationalError(statement, {}, TimeoutError("canceling statement"))

    sqla_event.listen(stores.engine, "before_cursor_execute", time_out)
    assert ids(claim(stores)) == [other]
    assert len(logged(caplog.records, "blocked_rows_not_moved")) == 1
    # Not repeated before each claim.
    caplog.clear()
    assert ids(claim(stores)) == []
    assert not caplog.records
    sqla_event.remove(stores.engine, "before_cursor_execute", time_out)
    clock.now += 100
    assert ids(claim(stores)) == rest


def test_due_delayed_rows_after_a_blocked_key_are_not_blocked(stores: Stores, clock: Clock) -> None:
    """Blocked rows would lose their due times, which set their order."""
    head, rest = with_a_held_key(stores, clock, behind=1)
    now = datetime.now(UTC)
    minutes = {n: write(stores, envelope("k"), at=now - timedelta(minutes=n)) for n in (1, 3, 2)}
    clock.now += 100
    assert ids(claim(stores)) == []
    assert count(stores, waiting=True, holds_key=False) == len(minutes)
    o = stores.tables.outbox
    due = update(o).where(o.c.event_id == head)
    with stores.engine.begin() as connection:
        connection.execute(due.values(due_at=now - timedelta(minutes=4)))
    again = claim(stores)
    assert ids(again) == [head]
    stores.outbox.settle(again.token, Settlement(processed=[head]))
    assert ids(claim(stores)) == [*minutes[3], *minutes[2], *minutes[1], *rest]


@pytest.mark.parametrize("stores", ["postgresql"], indirect=True)
def test_claim_looks_up_keys_while_many_rows_are_not_blocked(stores: Stores, clock: Clock) -> None:
    keys, behind = 20, 100
    write(stores, *(envelope(f"k{n}") for n in range(keys)))
    refuse(stores, claim(stores))
    write(stores, *(envelope(f"k{n % keys}") for n in range(keys * behind)))
    with stores.engine.begin() as connection:
        connection.execute(text("ANALYZE shield_outbox"))
    stores.outbox._blocked._next_scan = clock.now + 1
    run: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if statement.startswith("WITH") and "UPDATE" in statement:
            run.append((statement, parameters))

    sqla_event.listen(stores.engine, "before_cursor_execute", note)
    assert ids(claim(stores)) == []
    sqla_event.remove(stores.engine, "before_cursor_execute", note)
    statement, parameters = run[-1]
    with stores.engine.connect() as connection:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        [top] = connection.exec_driver_sql(explained, parameters).scalar_one()
    nodes = list(nodes_of(top["Plan"]))
    lookups = [n["Actual Loops"] for n in nodes if n.get("Alias", "").startswith("first_holder")]
    assert sum(lookups) == keys


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes_of(inner)


class Play:
    """Random steps: a few keys, one of them hot, a broker that refuses, and a failing relay.

    The relay sometimes dies, or loses its shards in the middle of a pass.
    """

    def __init__(self, stores: Stores, clock: Clock, seed: int) -> None:
        self.stores = stores
        self.clock = clock
        self.chance = random.Random(seed)
        self.relay = "me"
        self.written: dict[str, list[UUID]] = defaultdict(list)
        self.sent: dict[str, list[UUID]] = defaultdict(list)

    def step(self) -> None:
        for key in self.chance.choices("abcd", [1, 1, 1, 9], k=self.chance.randrange(8)):
            self.written[key] += write(self.stores, envelope(key))
        self.make_a_pass(refusals=0.5)
        self.clock.now += self.chance.choice([0, 0, 2, 100])
        if self.chance.random() < 0.3:
            make_due(self.stores)
        if self.chance.random() < 0.1:
            self.stores = restarted(self.stores, self.clock)

    def lose_the_shards(self) -> None:
        """Stall until another relay has taken over, run a pass and stopped."""
        let_all_leases_run_out(self.stores)
        mine, self.stores, self.relay = self.stores, restarted(self.stores, self.clock), "heir"
        self.make_a_pass(refusals=0.5)
        let_all_leases_run_out(self.stores)
        self.stores, self.relay = mine, "me"

    def drain(self) -> None:
        idle = 0
        while idle < 3:
            make_due(self.stores)
            idle = 0 if self.make_a_pass(refusals=0.0) else idle + 1
            self.clock.now += 100

    def make_a_pass(self, *, refusals: float) -> int:
        self.stores.leases.renew(relay=self.relay, lease=LEASE)
        limit = self.chance.choice([1, 4, 50])
        claimed = self.stores.outbox.claim(relay=self.relay, limit=limit)
        refused: set[str] = set()
        for event in claimed.events:
            if self.relay == "me" and self.chance.random() < 0.05:
                self.lose_the_shards()
                break
            self.settle(event, claimed.token, refused, refusals=refusals)
        return len(claimed.events)

    def settle(
        self, event: ClaimedEvent, token: UUID, refused: set[str], *, refusals: float
    ) -> None:
        event_id, key = event.envelope.id, event.envelope.key
        if key in refused:
            settlement = Settlement(unsent=[event_id], reason="held")
        elif self.chance.random() < refusals:
            refused.add(key)
            retry = Retry(event_id=event_id, delay=LATER, reason="no topic")
            settlement = Settlement(retries=[retry])
        else:
            self.sent[key].append(event_id)
            settlement = Settlement(processed=[event_id])
        assert self.stores.outbox.settle(token, settlement) == 1


@pytest.mark.parametrize("seed", range(6))
def test_order_per_key_holds_in_random_plays(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(blocked, "WINDOW", 3)
    monkeypatch.setattr(fence, "WINDOW", 3)
    if seed % 2:
        # Only the first row after each blocked key is blocked, so that claims rely on the fence.
        monkeypatch.setattr(BlockedRows, "_block", lambda *_: None)
    play = Play(stores, clock, seed)
    for _ in range(40):
        play.step()
    play.drain()
    assert play.sent == play.written
