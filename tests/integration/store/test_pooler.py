"""A real PgBouncer in transaction mode between shieldtx and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from shieldtx import Event, Settings, ShieldTx
from shieldtx.cli.errors import failure_of
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.store.idleness import limited_view
from shieldtx.testing.memory_broker import MemoryBroker
from tests.conftest import wait
from tests.support.pgbouncer import MISSING, installed, pooler_of, through
from tests.support.postgres_settings import IDLE_LIMIT, setting

PLACED = "orders.placed"
EVENTS = 120


@pytest.fixture(scope="module")
def pooler(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if installed() is None:
        pytest.skip(MISSING)
    with pooler_of(postgres, tmp_path_factory.mktemp("pgbouncer")) as port:
        yield port


def application(url: str, broker: MemoryBroker | None = None, **given: Any) -> ShieldTx:
    settings = {"database_pooler": "transaction"} | given
    app = ShieldTx(
        Settings(source="shop", database_url=url, **settings), broker=broker or MemoryBroker()
    )
    app.declare(PLACED)
    return app


def test_writers_relays_and_consumers_work_through_the_pooler(
    migrated_url: str, pooler: int
) -> None:
    url = through(migrated_url, pooler)
    broker = MemoryBroker()
    app = application(url, broker)
    broker.topics().create(app.topics(), partitions=2, replication=1)
    run(migrated_url, "CREATE TABLE effects (n int)")

    @app.consumer("stock").handles(PLACED)
    def count(session: Session, event: Event) -> None:
        session.execute(text("INSERT INTO effects VALUES (:n)"), {"n": event.payload})

    stop, errors = threading.Event(), []

    def keep_running(one_pass: Any) -> threading.Thread:
        def loop() -> None:
            while not stop.is_set():
                try:
                    one_pass()
                except Exception as error:  # noqa: BLE001  counted
                    errors.append(error)
                    return

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        return thread

    relays = [app.build_relay(f"relay {n}") for n in range(3)]
    consumers = [app.build_consumer("stock") for _ in range(2)]
    passes = [lambda r=r: (r.renew(), r.run_once()) for r in relays]
    threads = [keep_running(each) for each in (*passes, *(c.run_once for c in consumers))]
    writer = create_engine(url, connect_args={"prepare_threshold": None})
    for number in range(EVENTS):
        with Session(writer) as session, session.begin():
            app.outbox.add(session, Event(type=PLACED, key=str(number % 7), payload=number))
        with app.half(PLACED, EVENTS + number, key="half"):
            pass
    wait(
        lambda: bool(errors) or one(migrated_url, "SELECT count(*) FROM effects") == 2 * EVENTS,
        "all events have their effect",
        within=60,
    )
    stop.set()
    for thread in threads:
        thread.join(20)
    for relay in relays:
        relay.close()
    for consumer in consumers:
        consumer.close()
    assert errors == []
    assert one(migrated_url, "SELECT count(DISTINCT n) FROM effects") == 2 * EVENTS
    app.close()
    writer.dispose()


def test_a_transaction_whose_client_is_silent_is_limited(migrated_url: str, pooler: int) -> None:
    app = application(through(migrated_url, pooler), relay_lease=90)
    with app.engine.begin() as connection:
        assert setting(connection, IDLE_LIMIT) == "90s"
        assert setting(connection, "transaction_isolation") == "read committed"
    with limited_view(app.engine, idle=timedelta(seconds=7)).begin() as connection:
        assert setting(connection, IDLE_LIMIT) == "7s"
    # Other clients get the session.
    assert one(migrated_url, f"SHOW {IDLE_LIMIT}") == "0"
    app.close()


def test_relay_through_the_pooler_has_no_hints(migrated_url: str, pooler: int) -> None:
    app = application(through(migrated_url, pooler))
    assert app.connections.listener(lambda: None) is None


def test_writer_through_the_pooler_wakes_a_direct_relay(migrated_url: str, pooler: int) -> None:
    writer = application(through(migrated_url, pooler))
    woken = threading.Event()
    relay = application(migrated_url, database_pooler="none")
    listener = relay.connections.listener(woken.set)
    assert listener is not None
    listener.start()
    assert woken.wait(20)  # the listener listens
    woken.clear()
    with Session(writer.engine) as session, session.begin():
        writer.outbox.add(session, Event(type=PLACED))
    assert woken.wait(20)
    listener.close()
    writer.close()
    relay.close()


def test_error_without_the_pooler_setting_names_the_setting(migrated_url: str, pooler: int) -> None:
    app = application(through(migrated_url, pooler), database_pooler="none")
    with pytest.raises(OperationalError) as caught:
        app.schema.check()
    failure = failure_of(caught.value)
    assert failure is not None
    assert "SHIELDTX_DATABASE_POOLER=transaction" in failure.line


def one(url: str, query: str) -> Any:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.scalar(text(query))
    engine.dispose()
    return found


def run(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
