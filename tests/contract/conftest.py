"""The stores on every database that shieldtx supports, as the same fixture."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event

from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.store.barrier import SqlBarrier
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import Tables, tables
from tests.support.migrated_databases import migrated_sqlite

SHARDS = 4
ROUNDING = timedelta(milliseconds=1)
"""SQLite stores times as numbers of days, exact to some ten-thousandths of a second."""
POSTGRESQL, BEGUN_BY_HAND = "postgresql", "sqlite with BEGIN"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stores:
    """Every store over one migrated database."""

    engine: Engine
    tables: Tables
    writer: SqlOutboxWriter
    outbox: SqlRelayStore
    leases: SqlLeaseStore
    inbox: SqlInboxStore
    purge: SqlRetentionStore
    half: SqlHalfMessageStore
    admin: SqlHalfMessageAdmin
    barrier: SqlBarrier


def _with_begin(url: str) -> Engine:
    """Make an engine with an explicit BEGIN, as SQLAlchemy advises for SQLite with pysqlite."""
    engine = create_engine(url)

    def leave_to_us(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    event.listen(engine, "connect", leave_to_us)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each database, and if it is marked so, on an engine with an explicit BEGIN."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "stores" in metafunc.fixturenames and "stores" not in chosen:
        marked = metafunc.definition.get_closest_marker("begun_by_hand")
        databases = [POSTGRESQL, "sqlite", *([BEGUN_BY_HAND] if marked else [])]
        metafunc.parametrize("stores", databases, indirect=True)


@pytest.fixture
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == POSTGRESQL:
        url = request.getfixturevalue("migrated_url")
    else:
        url = migrated_sqlite(tmp_path / "store.db", SHARDS)
    engine = _with_begin(url) if request.param == BEGUN_BY_HAND else create_engine(url)
    yield _stores_over(engine)
    engine.dispose()


@contextmanager
def with_settings(stores: Stores, **settings: str) -> Iterator[Stores]:
    """Open the same database with settings of PostgreSQL for each of its connections."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    engine = create_engine(stores.engine.url, connect_args={"options": options})
    yield _stores_over(engine)
    engine.dispose()


def _stores_over(engine: Engine) -> Stores:
    described = tables()
    return Stores(
        engine=engine,
        tables=described,
        writer=SqlOutboxWriter(described, shards=SHARDS),
        outbox=SqlRelayStore(engine, described),
        leases=SqlLeaseStore(engine, described),
        inbox=SqlInboxStore(engine, described),
        purge=SqlRetentionStore(engine, described),
        half=SqlHalfMessageStore(engine, described, shards=SHARDS, plan=CheckSchedule()),
        admin=SqlHalfMessageAdmin(engine, described),
        barrier=SqlBarrier(engine, described, patience=timedelta(seconds=0.2)),
    )


UNINDEXED = {f"enable_{scan}": "off" for scan in ("indexscan", "indexonlyscan", "bitmapscan")}
"""Settings under which rows without an ORDER BY are returned in their physical order."""


@contextmanager
def before_first_update(engine: Engine, act: Callable[[], object]) -> Iterator[None]:
    """Let another connection act before the first UPDATE of a block, after its SELECTs."""
    acted = False

    def act_once(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal acted
        if not acted and statement.startswith("UPDATE"):
            acted = True
            act()

    event.listen(engine, "before_cursor_execute", act_once)
    yield
    event.remove(engine, "before_cursor_execute", act_once)
    assert acted
