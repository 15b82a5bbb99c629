"""The stores on every database that shieldtx knows, behind the same fixture."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
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
from shieldtx.store.schema import Schema
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import Tables, tables

SHARDS = 4


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
    desk: SqlHalfMessageAdmin
    barrier: SqlBarrier


def _with_begin(url: str) -> Engine:
    """Make an engine that begins by hand, as SQLAlchemy's page on SQLite advises for pysqlite."""
    engine = create_engine(url)

    def leave_to_us(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    event.listen(engine, "connect", leave_to_us)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


@pytest.fixture(params=["postgresql", "sqlite", "sqlite with BEGIN"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_url")
    else:
        url = f"sqlite:///{tmp_path / 'store.db'}"
    engine = _with_begin(url) if "BEGIN" in request.param else create_engine(url)
    Schema(engine, shards=SHARDS).upgrade()
    described = tables()
    yield Stores(
        engine=engine,
        tables=described,
        writer=SqlOutboxWriter(described, shards=SHARDS),
        outbox=SqlRelayStore(engine, described),
        leases=SqlLeaseStore(engine, described),
        inbox=SqlInboxStore(engine, described),
        purge=SqlRetentionStore(engine, described),
        half=SqlHalfMessageStore(engine, described, shards=SHARDS, plan=CheckSchedule()),
        desk=SqlHalfMessageAdmin(engine, described),
        barrier=SqlBarrier(engine, described, patience=timedelta(seconds=0.2)),
    )
    engine.dispose()
