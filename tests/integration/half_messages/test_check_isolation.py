"""Checks of half messages take no connections and no transactions from other events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import LocalOutcome, Settings, ShieldTx
from shieldtx.app.workers import relay_process
from shieldtx.testing.memory_broker import MemoryBroker
from tests.conftest import Eventually

THREADS = 20
AT_ONCE = timedelta(0)


@pytest.fixture
def make_app(migrated_url: str) -> Iterator[Callable[..., ShieldTx]]:
    made = ExitStack()

    def make(**settings: Any) -> ShieldTx:
        broker = MemoryBroker()
        app = ShieldTx(
            Settings(source="orders", database_url=migrated_url, relay_wakeup=False, **settings),
            broker=broker,
        )
        made.callback(app.close)
        return app

    yield make
    made.close()


def run_relay(app: ShieldTx, stack: ExitStack) -> None:
    worker = relay_process(app)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    stack.callback(thread.join, 30)
    stack.callback(worker.stop)


def test_checks_that_wait_leave_the_relays_connections_alone(make_app, eventually: Eventually):
    patience = {"barrier_patience": 50, "half_check_timeout": 60, "half_check_interval": 120}
    app, caller = make_app(half_check_threads=THREADS, **patience), make_app()
    for each in (app, caller):
        each.barrier("orders.placed")
        each.declare("orders.placed")
    with ExitStack() as stack, Session(caller.engine) as in_flight:
        for _ in range(THREADS):
            with caller.half("orders.placed", {}, immunity=AT_ONCE) as half:
                half.guard(in_flight)
                half.unknown()
        (check_back,) = app.half_messages.check_backs()
        thread = threading.Thread(target=check_back.run_once, daemon=True)
        thread.start()
        stack.callback(thread.join, 30)
        # Runs before the thread is joined.
        stack.callback(in_flight.rollback)

        waiting = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with caller.engine.connect() as connection:
            eventually(lambda: _scalar(connection, waiting) >= THREADS, "all checks wait")
        assert app.connections.checks_engine.pool.checkedout() >= THREADS  # type: ignore[attr-defined]
        assert app.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        with app.engine.connect() as connection:
            assert connection.scalar(text("SELECT 1")) == 1


def _scalar(connection, statement) -> int:
    count = connection.scalar(statement)
    connection.rollback()
    return int(count)


@pytest.mark.parametrize("types", [1, 200])
def test_idle_relay_polls_once_for_all_event_types(make_app, eventually: Eventually, types):
    app, before = make_app(), set(threading.enumerate())
    names = [f"orders.placed{n}" for n in range(types)]
    for name in names:
        app.declare(name)
    app.barrier(*names)
    statements: list[str] = []

    @sqlalchemy_event.listens_for(app.connections.checks_engine, "before_cursor_execute")
    def count(connection, cursor, statement, *more) -> None:
        if "check_at" in statement and "UNRESOLVED" not in str(more):
            statements.append(statement)

    with ExitStack() as stack:
        run_relay(app, stack)
        eventually(lambda: len(statements) >= 4, "a look a second")
        looks = [statement for statement in statements if "DISTINCT" in statement]
        # In addition to the polls, the parking runs a statement of its own.
        assert len(statements) - len(looks) <= 1
        assert len(set(threading.enumerate()) - before) < 20


def test_type_is_checked_as_soon_as_a_poll_finds_it_due(make_app, eventually: Eventually):
    app, asked = make_app(), []
    for name in ("orders.paid", "orders.placed"):
        app.declare(name)

        @app.checks(name)
        def check(event) -> LocalOutcome:
            asked.append(event.type)
            return LocalOutcome.COMMIT

    app.broker.topics().create(app.topics(), partitions=1, replication=1)
    with ExitStack() as stack:
        run_relay(app, stack)
        for _ in range(2):
            before = len(asked)
            with app.half("orders.paid", {}, immunity=AT_ONCE) as half:
                half.unknown()
            eventually(lambda: len(asked) > before, "the check")  # noqa: B023  called at once
    assert asked == ["orders.paid", "orders.paid"]


def test_given_engine_also_serves_checks(migrated_url: str, make_app):
    own = make_app()
    given = ShieldTx(own.settings, engine=own.engine, broker=MemoryBroker())
    assert given.connections.checks_engine is given.engine
    assert own.connections.checks_engine is not own.engine
