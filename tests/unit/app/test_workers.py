"""What a worker process is given by the settings and the declarations of its service."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shieldtx import ShieldTx
from shieldtx.app.workers import consumer_process, relay_process
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.write_side_shop import Shop

HOUR = timedelta(hours=1)


@pytest.fixture
def app(shop: Shop, shield: ShieldTx) -> ShieldTx:
    """An application with a broker in memory."""
    made = ShieldTx(shield.settings, engine=shop.engine, broker=MemoryBroker())
    made.declare("order.placed")
    made.broker.topics().create(made.topics(), partitions=1, replication=1)
    return made


@pytest.mark.parametrize(
    ("lease", "allowed"),
    [(HOUR, HOUR + timedelta(minutes=2)), (timedelta(seconds=30), timedelta(minutes=5))],
    ids=["a longer lease", "a shorter lease"],
)
def test_the_watchdog_of_a_consumer_allows_for_its_longest_lease(
    app: ShieldTx, lease: timedelta, allowed: timedelta
) -> None:
    group = app.consumer("stock")
    group.handles("order.placed", lease=lease)(lambda session, event: None)
    worker = consumer_process(app, "stock")
    assert worker._health._watchdog == allowed
    worker._close()


def test_a_relay_ends_when_it_can_neither_renew_nor_poll(app: ShieldTx) -> None:
    worker = relay_process(app)
    vital = {job.name for job in worker._jobs.values() if job.vital}
    assert vital == {"renew", "poll"}
    assert worker._health._failure_limit == app.settings.failure_limit == timedelta(minutes=10)
    worker._close()
