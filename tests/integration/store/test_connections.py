"""The connections that shieldtx opens: failover, time zones, isolation levels, forked processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool, QueuePool

from shieldtx import Event, Settings, ShieldTx
from shieldtx.embedded import EmbeddedPostgres
from shieldtx.errors import ConfigurationError
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.postgres_settings import setting

PLACED = "orders.placed"
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
FIRST_PASSWORD = "first"
LEVELS = ("repeatable read", "serializable")


@pytest.fixture
def admin(migrated_url: str) -> Iterator[Engine]:
    """An engine of the tests on the database."""
    engine = create_engine(migrated_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture
def role(admin: Engine) -> Iterator[str]:
    """A role for one test."""
    name = f"role_{uuid.uuid4().hex}"
    run(admin, f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{FIRST_PASSWORD}'")
    yield name
    run(admin, f"DROP ROLE {name}")


@contextmanager
def opened(url: str, **given: Any) -> Iterator[ShieldTx]:
    """An application with its own connections, or with the given `engine`."""
    engine = given.pop("engine", None)
    settings = Settings(
        source="shop", database_url=url, shards=4, relay_wakeup=False, half_immunity=60, **given
    )
    app = ShieldTx(settings, engine=engine, broker=MemoryBroker())
    app.declare(PLACED)
    app.broker.topics().create(app.topics(), partitions=1, replication=1)
    try:
        yield app
    finally:
        app.close()


def run(engine: Engine, *statements: str) -> None:
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))


def of_role(url: str, role: str, password: str = FIRST_PASSWORD) -> str:
    named = make_url(url).set(username=role, password=password)
    return named.render_as_string(hide_password=False)


def shown(connectable: Any, name: str) -> str:
    with connectable.connect() as connection:
        return setting(connection, name)


def test_a_server_that_became_read_only_is_left(
    migrated_url: str, admin: Engine, role: str
) -> None:
    run(admin, f"ALTER ROLE {role} SET default_transaction_read_only = on")
    with opened(of_role(migrated_url, role)) as app:
        relay = app.build_relay()
        with pytest.raises(DBAPIError, match="read-only transaction"):
            relay.renew()
        run(admin, f"ALTER ROLE {role} RESET default_transaction_read_only")
        # A session keeps its settings: only a new session reaches the new primary.
        relay.renew()
        assert len(relay.shards) == 4
        relay.close()


def test_sessions_ended_by_the_server_are_replaced(
    migrated_url: str, admin: Engine, role: str
) -> None:
    with opened(of_role(migrated_url, role)) as app:
        with app.engine.connect(), app.engine.connect():
            pass
        run(admin, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename='{role}'")
        time.sleep(0.6)  # longer than a connection rests before it is checked
        assert shown(app.engine, "TimeZone") == "UTC"


def test_a_limit_of_idle_sessions_does_not_end_those_of_a_worker(
    migrated_url: str, admin: Engine, role: str
) -> None:
    run(admin, f"ALTER ROLE {role} SET idle_session_timeout = '100ms'")
    with opened(of_role(migrated_url, role)) as app:
        assert shown(app.engine, "idle_session_timeout") == "0"


def test_a_server_that_vanishes_is_noticed_within_a_minute(migrated_url: str) -> None:
    with opened(f"{migrated_url}?keepalives_idle=7") as app, app.engine.connect() as connection:
        found = connection.connection.dbapi_connection.info.get_parameters()
    assert found["keepalives_idle"] == "7"
    assert found["keepalives_interval"] == "10"
    assert found["tcp_user_timeout"] == "60000"
    assert found["connect_timeout"] == "10"


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE"])
@pytest.mark.parametrize("how", ["option", "view"])
def test_isolation_level_that_would_override_is_refused(
    migrated_url: str, how: str, level: str
) -> None:
    if how == "option":
        engine = create_engine(migrated_url, execution_options={"isolation_level": level})
    else:
        engine = create_engine(migrated_url).execution_options(isolation_level=level)
    advice = re.escape(f"create_engine(url, isolation_level='{level}')")
    with opened(migrated_url, engine=engine) as app:
        with pytest.raises(ConfigurationError, match=advice):
            app.build_relay()
        with pytest.raises(ConfigurationError, match=advice):
            app.barrier(PLACED, engine=engine)
    engine.dispose()


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "READ COMMITTED"])
def test_isolation_level_of_an_engine_itself_is_accepted(migrated_url: str, level: str) -> None:
    engine = create_engine(migrated_url, isolation_level=level)
    with opened(migrated_url, engine=engine) as app:
        assert shown(app.engine, "transaction_isolation") == "read committed"
        with app.engine.connect() as connection:
            assert not connection.connection.driver_connection.autocommit
    engine.dispose()


@pytest.mark.parametrize("own", [True, False], ids=["own engine", "engine passed in"])
@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin"])
def test_times_at_the_ends_of_the_calendar_block_no_other_event(
    migrated_url: str, admin: Engine, zone: str, own: bool
) -> None:
    run(admin, f"ALTER DATABASE {admin.url.database} SET timezone = '{zone}'")
    engine = None if own else create_engine(migrated_url, poolclass=NullPool)
    with opened(migrated_url, engine=engine) as app:
        with Session(engine or app.engine) as session, session.begin():
            for key in ("first", "ordinary", "last"):
                delay = None if key == "ordinary" else timedelta(days=1)
                app.outbox.add(session, Event(type=PLACED, key=key), delay=delay)
        # As an earlier release has written them.
        with admin.connect() as connection:
            for key, due in (("first", FIRST), ("last", LAST)):
                connection.execute(
                    text("UPDATE shield_outbox SET due_at = :due WHERE key = :key"),
                    {"due": due, "key": key},
                )
        with Session(engine or app.engine) as session:
            assert [e.due_at for e in app.delayed.waiting(session)] == [FIRST, LAST]
        relay = app.build_relay()
        assert relay.run_once().published == 2
        relay.close()


@pytest.mark.parametrize("level", LEVELS)
def test_own_connections_are_read_committed_for_any_default(
    migrated_url: str, admin: Engine, level: str
) -> None:
    run(admin, f"ALTER DATABASE {admin.url.database} SET default_transaction_isolation='{level}'")
    with opened(migrated_url) as app:
        alone = app.engine.execution_options(isolation_level="AUTOCOMMIT")
        assert shown(app.engine, "transaction_isolation") == "read committed"
        assert shown(alone, "transaction_isolation") == "read committed"


@pytest.mark.parametrize("level", [*LEVELS, "autocommit"])
def test_an_engine_that_is_passed_in_is_used_at_read_committed(
    migrated_url: str, admin: Engine, level: str
) -> None:
    engine = create_engine(migrated_url, poolclass=NullPool, isolation_level=level.upper())
    if level != "autocommit":
        run(
            admin,
            f"ALTER DATABASE {admin.url.database} SET default_transaction_isolation='{level}'",
        )
    with opened(migrated_url, engine=engine) as app:
        assert shown(app.engine, "transaction_isolation") == "read committed"
        seen: list[str] = []
        store = app.build_relay()
        single = cast("SqlRelayStore", store._in_flight._store)._autocommit
        with single.begin() as connection:
            seen.append(setting(connection, "transaction_isolation"))
        assert seen == ["read committed"]
        store.close()


def prepare(app: ShieldTx, process: int) -> None:
    """A process of a service that writes half messages."""
    for number in range(30):
        with app.half(PLACED, {"process": process, "number": number}, key=str(process)):
            pass
    os._exit(0)


@pytest.mark.parametrize("own", [True, False], ids=["own engine", "engine passed in"])
def test_forked_processes_have_connections_of_their_own(
    migrated_url: str, admin: Engine, own: bool
) -> None:
    engine = None if own else create_engine(migrated_url)
    with opened(migrated_url, engine=engine) as app:
        # As a server that loads the application before it forks (gunicorn --preload).
        app.schema.check()
        assert isinstance(app.engine.pool, QueuePool)
        assert app.engine.pool.checkedin() == 1
        forks = multiprocessing.get_context("fork")
        children = [forks.Process(target=prepare, args=(app, number)) for number in range(4)]
        for child in children:
            child.start()
        app.schema.check()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0] * 4
        app.schema.check()
    assert written(admin) == 120
    if engine is not None:
        engine.dispose()


def spawned(url: str) -> None:
    with opened(url) as app:
        prepare(app, 1)


def test_a_spawned_process_opens_its_own(migrated_url: str, admin: Engine) -> None:
    child = multiprocessing.get_context("spawn").Process(target=spawned, args=(migrated_url,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert written(admin) == 30


def test_fork_outside_python_leaves_the_parents_connection(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(migrated_url) as app:
        before = backend(app)
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        in_the_child = backend(app)
        assert in_the_child != before
        assert backend(app) == in_the_child


def backend(app: ShieldTx) -> int:
    with app.engine.connect() as connection:
        return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


def written(admin: Engine) -> int:
    with admin.connect() as connection:
        return int(
            connection.scalar(text("SELECT count(*) FROM shield_outbox WHERE status='INIT'")) or 0
        )


def test_hosts_of_a_url_are_tried_until_one_takes_writes(
    postgres: EmbeddedPostgres, migrated_url: str
) -> None:
    url = make_url(migrated_url)
    login, name = f"{url.username}:{url.password}", url.database
    hosts = f"host=127.0.0.1:1&host=127.0.0.1:{url.port}"
    several = f"postgresql+psycopg://{login}@/{name}?{hosts}&target_session_attrs=read-write"
    with opened(several) as app:
        app.schema.check()


def test_a_refused_password_is_an_error_of_the_database(migrated_url: str, role: str) -> None:
    with (
        opened(of_role(migrated_url, role, "second")) as app,
        pytest.raises(OperationalError, match="password authentication failed"),
    ):
        app.build_relay().renew()
