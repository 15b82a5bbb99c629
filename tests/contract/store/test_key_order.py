"""The queries of a repair about the order of keys: sent events, and events that groups have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select

from shieldtx import InboxStatus, OutboxStatus, TxKind, new_event_id
from shieldtx.domain.events import Envelope, shard_of
from shieldtx.ports.hand_over import EventPosition, LaterPositions
from shieldtx.ports.repair import Note
from shieldtx.reconcile.repair.key_positions import KeyPositions
from shieldtx.store.repair import SqlRepairStore
from shieldtx.store.statements.envelope_columns import values_of
from tests.contract.conftest import SHARDS, Stores

NOW = datetime(2026, 3, 1, 2, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEY = ("orders.placed", "k")


def repair_store(stores: Stores) -> SqlRepairStore:
    return SqlRepairStore(stores.engine, stores.tables, source="orders")


def event(key: str = "k", **more: Any) -> Envelope:
    values = {"id": new_event_id(), "type": "orders.placed", "source": "orders", "key": key}
    return Envelope(topic="orders.placed", payload="{}", time=NOW, **values | more)


def put(stores: Stores, table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    is_numbered = stores.engine.dialect.name == "sqlite"
    with stores.engine.begin() as connection:
        for seq, row in enumerate(rows, start=1):
            connection.execute(insert(table).values(row | ({"seq": seq} if is_numbered else {})))


def sent(written: datetime, due: datetime | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of the outbox; with `due`, of an event with a chosen delay."""
    envelope = event()
    values = {
        "status": OutboxStatus.PROCESSED,
        "shard": shard_of(envelope.key, envelope.id, SHARDS),
        "attempts": 1,
        "waiting": due is not None,
        "holds_key": False,
        "unconfirmed": False,
        "due_at": due or written,
        "created_at": written,
        "settled_at": NOW,
    }
    return values_of(envelope) | values | more


def received(group: str = "stock", key: str = "k", **more: Any) -> dict[str, Any]:
    values = {
        "consumer_group": group,
        "status": InboxStatus.INIT,
        "attempts": 0,
        "event_time": NOW,
        "received_at": NOW,
        "due_at": NOW,
        "settled_at": None,
    }
    return values_of(event(key)) | values | more


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delayed", [0, 0.3, 1])
def test_all_later_events_are_selected(stores: Stores, seed: int, delayed: float):
    random = Random(seed)
    rows = []
    for number in range(40):
        # Clocks differ, and many events have the same time.
        written = NOW + random.choice([0, number, number - 20]) * MINUTE
        delay = random.choice([1, 5, 30]) * MINUTE if random.random() < delayed else None
        rows.append(sent(written, delay and written + delay))
    put(stores, stores.tables.outbox, rows)
    store = repair_store(stores)
    ids = [row["event_id"] for row in rows]
    positions: dict[UUID, EventPosition] = dict(store.positions(ids))
    asked = {event_id: positions[event_id] for event_id in random.sample(ids, 5)}

    later = LaterPositions.any_of(asked.values())
    found = {each.event_id: each for each in store.siblings([KEY], later=later)}
    all_, selected = KeyPositions(), KeyPositions()
    for each in store.siblings([KEY]):
        all_.add(each)
    for each in found.values():
        selected.add(each)

    assert later is not None
    for position in asked.values():
        assert selected.any_after(position) == all_.any_after(position)
    for event_id, position in positions.items():
        alone = KeyPositions()
        alone.add(position)
        if any(alone.any_after(each) for each in asked.values()):
            assert event_id in found
    assert LaterPositions.any_of([]) is None


@pytest.mark.parametrize("since", [None, NOW - MINUTE])
def test_events_of_another_source_are_not_in_order_with_these(
    stores: Stores, since: datetime | None
):
    rows = [sent(NOW), sent(NOW, source="shop"), sent(NOW, source="shop", settled_at=None)]
    put(stores, stores.tables.outbox, rows)

    found = list(repair_store(stores).siblings([KEY], since=since))

    assert [each.event_id for each in found] == [rows[0]["event_id"]]


def test_earlier_events_are_not_selected(stores: Stores):
    rows = [sent(NOW + number * MINUTE) for number in range(5)]
    put(stores, stores.tables.outbox, rows)
    store = repair_store(stores)
    ids = [row["event_id"] for row in rows]

    for since in (None, NOW - MINUTE):
        later = LaterPositions.any_of(store.positions(ids[2:3]).values())
        found = list(store.siblings([KEY], since=since, later=later))
        assert [each.event_id for each in found] == ids[3:]


def test_arrivals_are_counted_by_topic_and_key_as_they_are_read(stores: Stores):
    since = NOW - 10 * MINUTE
    rows = [
        received(),
        received(status=InboxStatus.PROCESSED, settled_at=NOW),
        received(status=InboxStatus.PROCESSED, settled_at=since - MINUTE),
        received(event_time=datetime(1960, 1, 1, tzinfo=UTC)),
        received(key="l"),
        received(key="m"),
        received(topic="paid"),
        received(group="mail"),
        received(source="web"),
        received(tx_kind=TxKind.ROLLBACK),
    ]
    put(stores, stores.tables.inbox, rows)
    store = repair_store(stores)
    keys = [KEY, ("orders.placed", "l"), ("orders.placed", "none"), ("paid", "l")]

    number = store.count_received("stock", "orders", keys, since=since)
    ever = dict.fromkeys(keys, datetime(1, 1, 2, tzinfo=UTC))
    arrivals = store.received_after("stock", "orders", ever, since=since)

    assert {key: number[key] for key in keys if key in number} == {
        KEY: 3,
        ("orders.placed", "l"): 1,
    }
    assert Counter(each.ordered_by for each in arrivals) == {KEY: 3, ("orders.placed", "l"): 1}
    assert store.count_received("stock", "orders", [], since=since) == {}


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("in_order", [True, False])
def test_events_after_an_unstored_event_are_not_stored(
    stores: Stores, in_order: bool, dry_run: bool
):
    put(stores, stores.tables.inbox, [received(biz_key="b", key="m")])
    first, conflicting, *later = [event(), event(biz_key="b"), event(), event(), event(biz_key="c")]
    other = event("l")
    note = Note(who="ann", run_id="r1", verdict="MISSING_DOWNSTREAM")

    handed = repair_store(stores).hand_over(
        "stock",
        [first, conflicting, later[0], other, *later[1:]],
        note=note,
        in_order=in_order,
        dry_run=dry_run,
    )

    later = {each.id for each in later}
    assert handed.conflicting == {conflicting.id}
    assert handed.later == (later if in_order else set())
    assert handed.done == {first.id, other.id} | (set() if in_order else later)
    with stores.engine.connect() as connection:
        stored = set(connection.scalars(select(stores.tables.inbox.c.event_id)))
    assert handed.done <= stored if not dry_run else len(stored) == 1
    assert not stored & (handed.later | handed.conflicting)
