"""The parameters of a worker process, from the settings and declarations of its service."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine

from shieldtx import ShieldTx
from shieldtx.app.workers import _identity, consumer_process, relay_process
from shieldtx.ports.relay import ShardLeases
from shieldtx.scheduling.exit_status import EXIT_FAILING
from shieldtx.scheduling.worker_log import WorkerLog
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.log_records import logged
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
def test_consumer_watchdog_allows_for_the_longest_lease(
    app: ShieldTx, lease: timedelta, allowed: timedelta
) -> None:
    group = app.consumer("stock")
    group.handles("order.placed", lease=lease)(lambda session, event: None)
    worker = consumer_process(app, "stock")
    assert worker._health._watchdog == allowed
    worker._close()


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("owner:SECRET@db.internal:5433/shop?sslpassword=SECRET", "db.internal:5433/shop"),
        ("owner@/shop?host=a:1&host=b:2&password=SECRET", "a:1,b:2/shop"),
        ("owner:SECRET@[::1]:5433/shop", "[::1]:5433/shop"),
        ("owner:SECRET@/shop", "/shop"),
    ],
    ids=["host", "hosts", "ipv6", "socket"],
)
def test_started_worker_names_its_database_without_password(
    url: str, database: str, shield: ShieldTx, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shieldtx")
    engine = create_engine(f"postgresql+psycopg://{url}")
    WorkerLog("relay", _identity(ShieldTx(shield.settings, engine=engine), relay="r")).started()
    (started,) = logged(caplog.records, "worker_started")
    assert (started["relay"], started["database"]) == ("r", database)
    assert "SECRET" not in str(started)


def test_relay_ends_when_neither_renewals_nor_polls_succeed(app: ShieldTx) -> None:
    worker = relay_process(app)
    vital = {job.name for job in worker._jobs.values() if job.vital}
    assert vital == {"renew", "poll"}
    assert worker._health._failure_limit == app.settings.failure_limit == timedelta(minutes=10)
    worker._close()


def test_relay_ends_when_renewals_fail_for_too_long(
    shop: Shop, shield: ShieldTx, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = timedelta(seconds=1)
    brief = {"relay_lease": second, "relay_send_timeout": second / 2, "failure_limit": second}
    app = ShieldTx(
        shield.settings.model_copy(update=brief), engine=shop.engine, broker=MemoryBroker()
    )
    renew, done = SqlLeaseStore.renew, []

    def renew_once(self: SqlLeaseStore, **lease: Any) -> ShardLeases:
        if done:
            raise OSError("permission denied for the table of relays")
        done.append(lease)
        return renew(self, **lease)

    monkeypatch.setattr(SqlLeaseStore, "renew", renew_once)
    worker = relay_process(app)
    too_late = threading.Timer(30, worker.stop)
    too_late.start()
    assert worker.run() == EXIT_FAILING
    too_late.cancel()
