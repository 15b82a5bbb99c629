"""Hints from writers to relays: quick, few, outside the pool, and never blocking."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.store import notify
from shieldtx.store.notify import Listener, Notifier
from tests.conftest import Eventually
from tests.support import child_process


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine with a single connection, which the hints must leave free."""
    engine = create_engine(database_url, pool_size=1, max_overflow=0, pool_timeout=2)
    yield engine
    engine.dispose()


@pytest.fixture
def open_until_the_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def notifier(engine: Engine, open_until_the_end: ExitStack) -> Notifier:
    made = Notifier(engine, None)
    open_until_the_end.callback(made.close)
    return made


class Ear:
    """A listener that counts how often it was woken."""

    def __init__(self, engine: Engine, schema: str | None = None) -> None:
        self.woken = 0
        self.listener = Listener(engine, schema, self._wake)
        self.listener.start()

    def _wake(self) -> None:
        self.woken += 1


@pytest.fixture
def ear(engine: Engine, open_until_the_end: ExitStack, eventually: Eventually) -> Ear:
    made = Ear(engine)
    open_until_the_end.callback(made.listener.close)
    eventually(lambda: made.woken == 1, "woken once by itself, for what came before it listened")
    return made


@contextmanager
def driver(engine: Engine) -> Iterator[psycopg.Connection]:
    url = engine.url.set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        yield connection


def backends(engine: Engine, command: str) -> list[int]:
    """Return the server processes whose last statement began with this command."""
    with driver(engine) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s",
            [f"{command}%"],
        )
        return [pid for (pid,) in rows]


def hint_until(notifier: Notifier, condition: Callable[[], bool], eventually: Eventually) -> None:
    def hinted() -> bool:
        notifier.hint()
        return condition()

    eventually(hinted, "a hint arrives")


def test_hint_wakes_the_listener_at_once(notifier, ear, eventually):
    delays = []
    hint_until(notifier, lambda: ear.woken > 1, eventually)
    for _ in range(20):
        time.sleep(2 * notify.PAUSE)
        heard = ear.woken
        began = time.monotonic()
        notifier.hint()
        eventually(lambda heard=heard: ear.woken > heard, "the hint arrives")
        delays.append(time.monotonic() - began)
    assert statistics.median(delays) < 0.25


def test_a_burst_of_hints_is_at_most_one_in_five_milliseconds(notifier, engine):
    def burst() -> None:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            notifier.hint()
            time.sleep(0.0005)

    with driver(engine) as connection:
        connection.execute('LISTEN "shieldtx_default"')
        began = time.monotonic()
        threads = [threading.Thread(target=burst) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        heard = len(list(connection.notifies(timeout=0.5)))
        lasted = time.monotonic() - began
    assert 2 <= heard <= lasted / notify.PAUSE + 1


def test_neither_side_takes_a_connection_from_the_pool(notifier, ear, engine, eventually):
    hint_until(notifier, lambda: ear.woken > 1, eventually)
    assert engine.pool.checkedout() == 0
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_hints_of_one_schema_do_not_wake_the_relays_of_another(engine, eventually):
    with ExitStack() as stack:
        ours, theirs = Ear(engine, "ours"), Ear(engine, "theirs")
        notifier = Notifier(engine, "ours")
        for opened in (ours.listener, theirs.listener, notifier):
            stack.callback(opened.close)
        eventually(lambda: theirs.woken == 1, "they listen")
        hint_until(notifier, lambda: ours.woken > 3, eventually)
        assert theirs.woken == 1


@pytest.mark.parametrize("side", ["LISTEN", "NOTIFY"])
def test_lost_connection_is_replaced_and_hints_continue(notifier, ear, engine, eventually, side):
    hint_until(notifier, lambda: ear.woken > 1, eventually)
    lost = backends(engine, side)
    assert len(lost) == 1
    with driver(engine) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", lost)
    heard = ear.woken
    hint_until(notifier, lambda: ear.woken > heard + 1, eventually)
    assert backends(engine, side) != lost


def test_an_unreachable_database_delays_only_hints(
    postgres: EmbeddedPostgres, monkeypatch, eventually
):
    monkeypatch.setattr(notify, "RECONNECT", 0.1)
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(postgres.url(name))
    ear, notifier = Ear(engine), Notifier(engine, None)
    try:
        began = time.monotonic()
        notifier.hint()
        assert time.monotonic() - began < 1, "it does not wait for the database"
        time.sleep(0.3)
        assert ear.woken == 0
        postgres.create_database(name)
        eventually(lambda: ear.woken >= 1, "it listens by itself")
        hint_until(notifier, lambda: ear.woken >= 2, eventually)
    finally:
        ear.listener.close()
        notifier.close()
        engine.dispose()
        postgres.drop_database(name)


def test_closing_ends_threads_and_connections(engine, eventually):
    before = set(threading.enumerate())
    ear, notifier = Ear(engine), Notifier(engine, None)
    hint_until(notifier, lambda: ear.woken > 1, eventually)
    notifier.close()
    ear.listener.close()
    assert set(threading.enumerate()) <= before
    eventually(lambda: not backends(engine, "LISTEN") + backends(engine, "NOTIFY"), "both let go")
    notifier.hint()
    assert not backends(engine, "NOTIFY")


def test_notifier_closed_during_a_hint_ends(engine):
    notifier = Notifier(engine, None)

    class ClosedMeanwhile(threading.Event):
        def clear(self):
            notifier._closed.set()
            self.set()
            super().clear()

    notifier._wanted = ClosedMeanwhile()
    notifier.hint()
    notifier._thread.join(timeout=5)
    assert not notifier._thread.is_alive()


@pytest.mark.parametrize("twophase", [False, True])
def test_only_a_committed_event_wakes_the_relay(
    database_url, engine, eventually, open_until_the_end, twophase
):
    shield = ShieldTx(Settings(source="shop", database_url=database_url, shards=4), engine=engine)
    shield.schema.upgrade()
    shield.declare("order.placed")
    woken = []
    listener = shield.connections.listener(lambda: woken.append(1))
    listener.start()
    open_until_the_end.callback(listener.close)
    open_until_the_end.callback(shield.close)
    eventually(lambda: len(woken) == 1, "it listens")
    with Session(engine, twophase=twophase) as session:
        shield.outbox.add(session, Event(type="order.placed"))
        session.rollback()
        assert not backends(engine, "NOTIFY")
        shield.outbox.add(session, Event(type="order.placed"))
        session.commit()
    eventually(lambda: len(woken) == 2, "the commit's hint arrives")


FORKING = """
import os, sys
from sqlalchemy import create_engine
from shieldtx.store.notify import Notifier

notifier = Notifier(create_engine(sys.argv[1]), None)
notifier.hint()
sys.stdin.readline()
ended, end = os.pipe()
# The worst moment: another thread of the parent is about to start the notifier.
with notifier._starting:
    child = os.fork()
if child == 0:
    os.close(end)
    notifier.hint()
    os.read(ended, 1)
    os._exit(0)
sys.stdin.readline()
notifier.hint()
sys.stdin.readline()
os.close(end)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_forked_processes_send_hints_over_their_own_connections(engine, database_url):
    with ExitStack() as stack:
        connection = stack.enter_context(driver(engine))
        connection.execute('LISTEN "shieldtx_default"')
        process = stack.enter_context(
            child_process.start(
                [sys.executable, "-c", FORKING, database_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        )
        stack.callback(process.kill)
        heard = []
        for _ in ("parent", "child", "parent"):
            heard += [n.pid for n in connection.notifies(timeout=30, stop_after=1)]
            process.stdin.write("go on\n")
        assert len(heard) == 3
        assert heard[0] == heard[2] != heard[1]
        assert process.stdout.readline() == "0\n"
