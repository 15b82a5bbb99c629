from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select, text

from shieldtx.store.migrations import OWN_TABLES
from shieldtx.store.schema import Schema, upgrade_with
from shieldtx.store.tables import tables
from tests.support import child_process
from tests.support.revisions import HEAD

UPGRADE = """
import os
from sqlalchemy import create_engine
from shieldtx.store.schema import Schema
Schema(create_engine(os.environ["DATABASE"]), schema="messages").upgrade()
"""
PATIENCE_S = 60.0


@pytest.fixture
def start_upgrade(database_url: str) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start processes that upgrade; the fixture ends all of them."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "DATABASE": database_url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        process = child_process.start([sys.executable, "-c", UPGRADE], env=environment)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def count(engine: Engine, query: str) -> int:
    with engine.connect() as connection:
        found: int = connection.scalar(text(query))
        return found


def waiting_for_the_lock(engine: Engine) -> int:
    """Count the upgrades that poll for the lock; the one that holds it has run other statements."""
    return count(
        engine,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
        "pid <> pg_backend_pid() AND "
        "query LIKE '%pg_try_advisory_xact_lock%'",
    )


def assert_whole(engine: Engine, schema: str) -> None:
    Schema(engine, schema=schema).check()
    assert set(inspect(engine).get_table_names(schema)) == OWN_TABLES
    with engine.connect() as connection:
        assert connection.scalars(
            text(f"SELECT version_num FROM {schema}.shield_version")
        ).all() == [HEAD]
        assert connection.scalar(select(func.count()).select_from(tables(schema).shard)) == 64


def test_ten_processes_upgrade_concurrently(
    engine: Engine,
    start_upgrade: Callable[[], subprocess.Popen[bytes]],
    eventually: Any,
) -> None:
    with engine.connect() as first, first.begin() as transaction:
        upgrade_with(first, schema="messages")
        processes = [start_upgrade() for _ in range(10)]
        eventually(
            lambda: waiting_for_the_lock(engine) == 10, "all ten wait for the lock", PATIENCE_S
        )
        transaction.rollback()

    assert [process.wait(PATIENCE_S) for process in processes] == [0] * 10
    assert_whole(engine, "messages")


def test_ten_threads_upgrade_concurrently(database_url: str, eventually: Any) -> None:
    engine = create_engine(database_url, pool_size=12)
    with engine.connect() as first, first.begin() as transaction, ThreadPoolExecutor(10) as threads:
        upgrade_with(first, schema="messages")
        upgrades = [threads.submit(Schema(engine, schema="messages").upgrade) for _ in range(10)]
        eventually(
            lambda: waiting_for_the_lock(engine) == 10, "all ten wait for the lock", PATIENCE_S
        )
        transaction.rollback()
        for upgrade in upgrades:
            upgrade.result(PATIENCE_S)

    assert_whole(engine, "messages")
    engine.dispose()


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_waiting_upgrade_finds_the_tables_of_the_first(
    engine: Engine, database_url: str, isolation: Any, eventually: Any
) -> None:
    strict = create_engine(database_url, isolation_level=isolation)
    with engine.connect() as first, first.begin() as transaction, ThreadPoolExecutor(1) as thread:
        upgrade_with(first, schema="messages")
        upgrade = thread.submit(Schema(strict, schema="messages").upgrade)
        eventually(lambda: waiting_for_the_lock(engine) == 1, "it waits for the lock")
        transaction.commit()
        upgrade.result(PATIENCE_S)

    assert_whole(engine, "messages")
    strict.dispose()


def test_only_upgrades_of_the_same_schema_wait(engine: Engine, eventually: Any) -> None:
    """The same schema by another name waits, too."""
    with engine.connect() as first, first.begin() as transaction, ThreadPoolExecutor(1) as thread:
        upgrade_with(first, schema=None)

        Schema(engine, schema="messages").upgrade()
        same = thread.submit(Schema(engine, schema="public").upgrade)
        eventually(lambda: waiting_for_the_lock(engine) == 1, "it waits for the lock")
        transaction.commit()
        same.result(PATIENCE_S)

    assert_whole(engine, "messages")
    assert_whole(engine, "public")


def test_no_lock_stays_in_the_connection_pool(database_url: str) -> None:
    engine = create_engine(database_url, pool_size=1, max_overflow=0)
    schema = Schema(engine)
    schema.upgrade()
    schema.downgrade("base")
    schema.upgrade()

    locks = count(
        engine,
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE l.locktype = 'advisory' AND d.datname = current_database()",
    )
    with engine.connect() as connection:
        isolation = connection.get_isolation_level()
    assert (locks, isolation) == (0, "READ COMMITTED")
    engine.dispose()


def test_killed_upgrade_leaves_no_partial_tables(
    engine: Engine,
    start_upgrade: Callable[[], subprocess.Popen[bytes]],
    eventually: Any,
) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messages"))
    upgrading = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid() AND query LIKE '%CREATE TABLE messages.shield_audit%'"
    )

    with engine.connect() as blocker, blocker.begin() as transaction:
        # The last table of the migration: an open transaction has taken its name.
        blocker.execute(text("CREATE TABLE messages.shield_audit (in_the_way int)"))
        # After this, the blocker's own last statement does not match the query.
        blocker.execute(text("SELECT 1"))
        process = start_upgrade()
        eventually(
            lambda: count(engine, f"{upgrading} AND wait_event_type = 'Lock'") == 1,
            "it waits for the blocker",
            PATIENCE_S,
        )
        process.kill()
        process.wait()
        transaction.rollback()
    eventually(lambda: count(engine, upgrading) == 0, "the server noticed its death")

    schema = Schema(engine, schema="messages")
    assert inspect(engine).get_table_names("messages") == []
    assert schema.current() is None

    schema.upgrade()
    assert_whole(engine, "messages")
