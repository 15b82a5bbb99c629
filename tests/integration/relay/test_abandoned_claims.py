"""After an error inside a relay, the events of its batches are sent at once and in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from shieldtx import Event, ShieldTx
from shieldtx.ports.broker import Delivery, DeliveryOutcome, Record
from shieldtx.relay.relay import Relay
from shieldtx.settings.settings import Settings
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.migrated_databases import migrated_sqlite

EVENTS, BATCH = 12, 4
PASSES = 20
"""Far more passes than necessary, and all within the leases of the claims."""


class NoThread(RuntimeError):
    """The error of a process that may start no more threads."""


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ShieldTx]:
    settings = Settings(
        database_url=migrated_sqlite(tmp_path / "shop.db", shards=1),
        source="shop",
        shards=1,
        relay_batch_size=getattr(request, "param", BATCH),
    )
    app = ShieldTx(settings, broker=MemoryBroker())
    app.declare("order.placed")
    app.broker.topics().create(app.topics(), partitions=1, replication=1)
    with Session(app.engine) as session, session.begin():
        for number in range(EVENTS):
            app.outbox.add(session, Event(type="order.placed", payload=number, key="k"))
    yield app
    app.close()


def raising_once(call: Callable[..., Any], *, at: int) -> Callable[..., Any]:
    """Make the call with number `at` raise."""
    calls = 0

    def once(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise NoThread("can't start new thread")
        return call(*args, **kwargs)

    return once


def no_thread(relay: Relay, at: int) -> None:
    thread: Any = relay._publish_thread
    thread.submit = raising_once(thread.submit, at=at)


def no_pressure(relay: Relay, at: int) -> None:
    sender: Any = relay._sender
    sender.pressure = raising_once(sender.pressure, at=at)


def no_retry_policy(relay: Relay, at: int) -> None:
    """Let the broker refuse one record of a batch whose retry policy cannot be read."""
    publisher: Any = relay._sender._publisher
    publish, batches = publisher.publish, 0

    def refusing(records: list[Record], **options: Any) -> list[Delivery]:
        nonlocal batches
        batches += 1
        sent = list(publish(records, **options))
        if batches == at:
            sent[-1] = Delivery(outcome=DeliveryOutcome.REFUSED, reason="not now")
        return sent

    publisher.publish = refusing
    broken: Any = relay
    broken._retry_of = raising_once(relay._retry_of, at=1)


def no_memory_to_add(relay: Relay, at: int) -> None:
    in_flight: Any = relay._in_flight
    in_flight.add = raising_once(in_flight.add, at=at)


def broken_off_behind_submit(relay: Relay, at: int) -> None:
    """The thread has the batch when the pass is interrupted, and sends it some time later."""
    thread: Any = relay._publish_thread
    submit, calls = thread.submit, 0

    def breaking_off(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        future = submit(*args)
        if calls == at:
            raise NoThread("interrupted")
        return future

    thread.submit = breaking_off


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize(
    "break_", [no_thread, no_pressure, no_retry_policy, no_memory_to_add, broken_off_behind_submit]
)
def test_all_events_are_sent_at_once_in_order(
    app: ShieldTx, break_: Callable[[Relay, int], None], at: int
) -> None:
    relay = app.build_relay()
    break_(relay, at)
    with pytest.raises(NoThread):
        run_passes(relay)
    run_passes(relay)
    assert order_of_first_copies(app) == list(range(EVENTS))
    relay.close()


def run_passes(relay: Relay) -> None:
    for _ in range(PASSES):
        relay.run_once()


def order_of_first_copies(app: ShieldTx) -> list[int]:
    broker: Any = app.broker
    records = [r for topic in broker._cluster.topics.values() for log in topic.logs for r in log]
    return list(dict.fromkeys(json.loads(record.value) for record in records))


@pytest.mark.parametrize("break_", [no_pressure, no_memory_to_add, broken_off_behind_submit])
def test_a_batch_that_may_have_been_sent_is_unconfirmed(
    app: ShieldTx, break_: Callable[[Relay, int], None]
) -> None:
    """Its local rollback must not run: consumers may act on the event."""
    relay = app.build_relay()
    break_(relay, 1)
    with pytest.raises(NoThread):
        relay.run_once()
    relay.close()
    with app.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT status, unconfirmed, attempts FROM shield_outbox ORDER BY seq"
        ).all()
    assert {tuple(row) for row in rows[:BATCH]} == {("INIT", 1, 0)}


@pytest.mark.parametrize("app", [10 * EVENTS], indirect=True)
@pytest.mark.parametrize("break_", [no_pressure, no_memory_to_add])
def test_single_batch_that_may_have_been_sent_is_unconfirmed(
    app: ShieldTx, break_: Callable[[Relay, int], None]
) -> None:
    relay = app.build_relay()
    break_(relay, 1)
    with pytest.raises(NoThread):
        relay.run_once()
    assert order_of_first_copies(app) == list(range(EVENTS)), "one batch, without a backlog"
    relay.close()
    with app.engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT DISTINCT status, unconfirmed, attempts FROM shield_outbox"
        ).all()
    assert [tuple(row) for row in rows] == [("INIT", 1, 0)]
