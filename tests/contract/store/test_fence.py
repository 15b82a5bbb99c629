"""While keys are blocked, claims start after the rows of these keys, and pass no other row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection, func, select, text, update
from sqlalchemy import event as sqla_event

from shieldtx.domain.states import OutboxStatus
from shieldtx.ports.relay import Settlement
from shieldtx.store import blocked, fence
from shieldtx.store.blocked import BlockedRows
from shieldtx.store.fence import RESWEEP_S, SETTLING_S
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.statements import outbox as statements
from tests.contract.conftest import Stores
from tests.contract.store.test_blocked_rows import Clock, clock, make_due, nodes_of, refuse, stores
from tests.contract.store.test_outbox import (
    claim,
    column,
    envelope,
    ids,
    let_all_leases_run_out,
    write,
)

__all__ = ["clock", "stores"]

pytestmark = pytest.mark.parametrize("stores", ["postgresql"], indirect=True)

KEYS = 20
BEHIND = 50
"""The number of rows of each key."""


@pytest.fixture
def migrated_url(undisturbed_url: str) -> str:
    """The fence waits for every transaction of its server."""
    return undisturbed_url


@pytest.fixture(autouse=True)
def _rows_stay_in_main_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block only the first row of each key, as in the first minutes with many rows."""
    monkeypatch.setattr(BlockedRows, "_block", lambda *_: None)


def pile_up(stores: Stores) -> tuple[list[UUID], list[UUID]]:
    """Return the rows that block their keys, and the rows after them, most in the main queue."""
    heads = write(stores, *(envelope(f"k{n}") for n in range(KEYS)))
    refuse(stores, claim(stores))
    rest = write(stores, *(envelope(f"k{n % KEYS}") for n in range(KEYS * BEHIND)))
    with stores.engine.begin() as connection:
        connection.execute(text("ANALYZE shield_outbox"))
    return heads, rest


def let_the_fence_follow(stores: Stores, clock: Clock) -> int:
    """Scan until the fence is at the present end of the queue, and return its number."""
    for _ in range(2):
        clock.now += 2 * SETTLING_S + 1
        assert ids(claim(stores)) == []
    return stores.outbox._blocked.fence.seq


def last_in_main_queue(stores: Stores) -> int:
    with stores.engine.connect() as connection:
        return int(connection.scalar(select(func.max(stores.tables.outbox.c.seq))))


def blocked_rows(stores: Stores) -> int:
    o = stores.tables.outbox
    counted = select(func.count()).where(o.c.holds_key, ~o.c.waiting, o.c.settled_at.is_(None))
    with stores.engine.connect() as connection:
        return int(connection.scalar(counted))


@contextmanager
def claims_noted(stores: Stores) -> Iterator[list[tuple[str, Any]]]:
    run: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
        if statement.startswith("WITH") and "lease_token" in statement:
            run.append((statement, parameters))

    sqla_event.listen(stores.engine, "before_cursor_execute", note)
    yield run
    sqla_event.remove(stores.engine, "before_cursor_execute", note)


def rows_walked(stores: Stores, statement: str, parameters: Any) -> int:
    """Run a claim once more, undo it, and return how many rows of the queue it read."""
    with stores.engine.connect() as connection:
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
        [top] = connection.exec_driver_sql(explained, parameters).scalar_one()
    scans = [n for n in nodes_of(top["Plan"]) if n.get("Alias", "").startswith("line")]
    assert scans
    read = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return int(sum(n.get(name, 0) * n["Actual Loops"] for n in scans for name in read))


@pytest.mark.parametrize("window", [7, 50_000])
def test_claim_reads_no_row_after_a_blocked_key(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(fence, "WINDOW", window)
    pile_up(stores)
    assert let_the_fence_follow(stores, clock) == last_in_main_queue(stores)
    assert blocked_rows(stores) == KEYS
    with claims_noted(stores) as run:
        assert ids(claim(stores)) == []
        [other] = write(stores, envelope("another"))
        assert ids(claim(stores)) == [other]
    assert rows_walked(stores, *run[0]) <= 1


def test_scans_pause_only_after_a_fence_exists(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "WINDOW", KEYS * BEHIND // 4)
    monkeypatch.setattr(blocked, "BUDGET_S", 0.0)
    pile_up(stores)
    for _ in range(2):
        clock.now += 2 * SETTLING_S + 1
        assert ids(claim(stores)) == []
    # No more time passes: the store uses the test's clock.
    pauses = []
    for _ in range(12):
        assert ids(claim(stores)) == []
        pauses.append(stores.outbox._blocked._next_scan > clock.now)
    assert pauses.count(False) > 2
    assert pauses == sorted(pauses)
    assert pauses[-1]
    assert stores.outbox._blocked.fence.seq == last_in_main_queue(stores)


def test_row_of_a_key_freed_elsewhere_is_not_overtaken(stores: Stores, clock: Clock) -> None:
    heads, rest = pile_up(stores)
    let_the_fence_follow(stores, clock)
    # By the previous owner after a stall: this relay's store gets no notice of it.
    o = stores.tables.outbox
    with stores.engine.begin() as connection:
        settled = {"status": OutboxStatus.PROCESSED.value, "settled_at": o.c.created_at}
        connection.execute(update(o).where(o.c.event_id == heads[0]).values(settled))
    [last] = write(stores, envelope("k0"))
    assert ids(claim(stores)) == []
    clock.now += 100
    assert ids(claim(stores)) == [*rest[::KEYS], last]


def test_rows_of_a_freed_key_return_in_order(stores: Stores, clock: Clock) -> None:
    heads, rest = pile_up(stores)
    let_the_fence_follow(stores, clock)
    [last] = write(stores, envelope("k0"))
    make_due(stores)
    again = claim(stores)
    assert set(ids(again)) == set(heads)
    others = [head for head in heads if head != heads[0]]
    settlement = Settlement(processed=[heads[0]], unsent=others, reason="outage")
    stores.outbox.settle(again.token, settlement)
    found = ids(claim(stores))
    assert [event_id for event_id in found if event_id not in heads] == [*rest[::KEYS], last]


@pytest.mark.parametrize("way", ["unsent", "unconfirmed"])
def test_a_released_row_is_found_below_the_fence(stores: Stores, clock: Clock, way: str) -> None:
    pile_up(stores)
    let_the_fence_follow(stores, clock)
    written = write(stores, envelope("another"), envelope("another"))
    claimed = claim(stores)
    assert ids(claimed) == written
    assert let_the_fence_follow(stores, clock) >= column(stores, "seq", written[-1])
    stores.outbox.settle(claimed.token, Settlement(**{way: written}, reason="outage"))
    assert ids(claim(stores)) == written


def test_a_replayed_row_is_found_below_the_fence(stores: Stores, clock: Clock) -> None:
    [event_id] = write(stores, envelope("another"))
    failed = claim(stores)
    assert stores.outbox.fail(failed.token, event_id, reason="refused", local_rollback=None)
    pile_up(stores)
    let_the_fence_follow(stores, clock)
    with stores.engine.begin() as connection:
        dialect = stores.outbox._dialect
        connection.execute(statements.replay(stores.tables, dialect, event_id))
    clock.now += RESWEEP_S
    found: list[UUID] = []
    for _ in range(3):
        found += ids(claim(stores))
        clock.now += 2
    assert found == [event_id]


def write_late(stores: Stores, slow: Connection, like: UUID) -> None:
    """Write a row whose sequence number is lower than the rows committed before it."""
    o = stores.tables.outbox
    late = {c.name: c for c in o.c if c.name not in {"event_id", "seq"}} | {
        "key": text("'late'"),
        "waiting": text("false"),
        "holds_key": text("false"),
        "event_id": func.gen_random_uuid(),
    }
    copied = select(*late.values()).where(o.c.event_id == like)
    slow.execute(o.insert().from_select(list(late), copied))


def test_fence_waits_for_a_transaction_that_may_write_below_it(
    stores: Stores, clock: Clock
) -> None:
    heads, _ = pile_up(stores)
    with stores.engine.begin() as slow:
        write_late(stores, slow, heads[0])
        write(stores, envelope("k0"))
        for _ in range(3):
            clock.now += 2
            assert ids(claim(stores)) == []
        assert stores.outbox._blocked.fence.seq < last_in_main_queue(stores) - 1
    assert len(ids(claim(stores))) == 1


def test_the_fence_stays_below_rows_written_since_its_target(stores: Stores, clock: Clock) -> None:
    heads, _ = pile_up(stores)
    let_the_fence_follow(stores, clock)
    with stores.engine.begin() as slow:
        write_late(stores, slow, heads[0])
        [other] = write(stores, envelope("another"))
        clock.now += 2 * SETTLING_S + 1
        assert ids(claim(stores)) == [other]
    assert len(ids(claim(stores))) == 1


def test_rows_of_new_shards_are_read_again(stores: Stores, clock: Clock) -> None:
    pile_up(stores)
    let_the_fence_follow(stores, clock)
    with stores.engine.begin() as connection:
        s, o = stores.tables.shard, stores.tables.outbox
        connection.execute(update(s).values(epoch=s.c.epoch + 1))
        freed = update(o).where(o.c.settled_at.is_(None)).values(holds_key=False)
        connection.execute(freed.where(~o.c.waiting))
        connection.execute(update(o).where(o.c.waiting).values(settled_at=o.c.created_at))
    stores.outbox._blocked._next_scan = clock.now + 1
    assert len(ids(claim(stores))) > 0


def test_a_long_transaction_does_not_hide_a_replayed_row(stores: Stores, clock: Clock) -> None:
    [event_id] = write(stores, envelope("another"))
    failed = claim(stores)
    assert stores.outbox.fail(failed.token, event_id, reason="refused", local_rollback=None)
    pile_up(stores)
    let_the_fence_follow(stores, clock)
    with stores.engine.begin() as slow:
        slow.execute(text("SELECT pg_current_xact_id()"))
        # The fence waits for this transaction from now on.
        clock.now += 2
        assert ids(claim(stores)) == []
        with stores.engine.begin() as connection:
            dialect = stores.outbox._dialect
            connection.execute(statements.replay(stores.tables, dialect, event_id))
        found: list[UUID] = []
        for _ in range(3):
            clock.now += RESWEEP_S
            found += ids(claim(stores))
        assert found == [event_id]


def test_a_relay_of_one_source_has_a_fence_for_its_rows(stores: Stores, clock: Clock) -> None:
    ours = SqlRelayStore(stores.engine, stores.tables, source="things", clock=clock)
    stores = replace(stores, outbox=ours)
    write(stores, envelope("k0", source="another"))
    pile_up(stores)
    others = write(stores, envelope("k1", source="another"), envelope("free", source="another"))
    assert let_the_fence_follow(stores, clock) == last_in_main_queue(stores)
    assert not any(column(stores, "holds_key", event_id) for event_id in others)
    [free] = write(stores, envelope("free"))
    assert ids(claim(stores)) == [free]


def test_a_sweep_without_shards_moves_no_fence(stores: Stores, clock: Clock) -> None:
    pile_up(stores)
    assert let_the_fence_follow(stores, clock) > 0
    let_all_leases_run_out(stores)
    kept = stores.outbox._blocked.fence
    with stores.engine.begin() as connection:
        assert not kept.sweep(connection, "me")
    assert kept.seq == 0


def test_a_lease_that_ends_during_a_sweep_moves_no_fence(stores: Stores, clock: Clock) -> None:
    """A renewal that waits for the sweep may extend the lease under the same epoch."""
    write(stores, *(envelope(f"k{n}") for n in range(KEYS)))
    refuse(stores, claim(stores))
    written = write(stores, *(envelope(f"other{n}") for n in range(KEYS)))
    kept = stores.outbox._blocked.fence

    def set_leases(connection: Connection, seconds: int) -> None:
        s = stores.tables.shard
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        connection.execute(update(s).values(lease_until=until))

    def end_the_leases(by: Connection, __: object, statement: str, *___: object) -> None:
        if "looked_at" in statement:
            # In the transaction of the sweep, which has locked the rows.
            set_leases(by, -1)

    sqla_event.listen(stores.engine, "before_cursor_execute", end_the_leases)
    for _ in range(2):
        clock.now += 2 * SETTLING_S
        with stores.engine.begin() as connection:
            set_leases(connection, 60)
            kept.sweep(connection, "me")
    sqla_event.remove(stores.engine, "before_cursor_execute", end_the_leases)
    with stores.engine.begin() as connection:
        set_leases(connection, 60)
    stores.outbox._blocked._next_scan = clock.now + 1
    assert set(ids(claim(stores))) == set(written)
