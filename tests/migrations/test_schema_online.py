"""Upgrades of tables in use: no writer queues after them, and interrupted ones are completed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, insert, select, text
from sqlalchemy.pool import NullPool

from shieldtx.errors import SchemaMismatch, UpgradeBlocked
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.inbox import Parked
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.schema import Schema, upgrade_with
from shieldtx.store.tables import tables
from tests.support.revisions import HEAD, LATER

SOON = timedelta(seconds=1)
PATIENCE_S = 60.0
OLD = "0003"
"""The revision before the first one that alters a table in use."""


@pytest.fixture
def old(database_url: str) -> Iterator[Engine]:
    """A database whose tables are at an old revision."""
    engine = create_engine(database_url, poolclass=NullPool)
    Schema(engine).upgrade(OLD)
    yield engine
    engine.dispose()


@contextmanager
def upgrading(engine: Engine) -> Iterator[tuple[Future[None], list[str]]]:
    """Upgrade in another thread, and collect the reported notices."""
    notices: list[str] = []
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(Schema(engine).upgrade, notice=notices.append), notices


def write(engine: Engine, event: dict[str, Any]) -> None:
    """Write an event; fail instead of waiting for long."""
    columns = tables().outbox.c
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        row = {**event, "event_id": uuid4()}
        connection.execute(insert(tables().outbox).values({columns[n]: v for n, v in row.items()}))


def validity(engine: Engine, index: str) -> bool | None:
    with engine.connect() as connection:
        found: bool | None = connection.scalar(
            text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:index)"),
            {"index": index},
        )
        return found


def test_writers_go_on_while_an_upgrade_waits_for_a_reader(
    old: Engine, an_event: dict[str, Any], eventually: Callable[..., None]
) -> None:
    with old.connect() as reader, upgrading(old) as (upgrade, notices):
        reader.execute(select(tables().outbox.c.event_id))
        for _ in range(3):
            waits = len(notices)
            eventually(lambda waits=waits: len(notices) > waits, "it waits once more", PATIENCE_S)
            write(old, an_event)
        assert not upgrade.done()
        reader.rollback()
        upgrade.result(PATIENCE_S)

    Schema(old).check()
    assert "revision 0004: waits for a lock, attempt 1, writers go on" in notices[0]
    assert "idle in transaction" in notices[0]
    assert f"revision {HEAD}: done" in notices


def test_upgrade_that_waits_too_long_names_the_blocker(old: Engine) -> None:
    with old.connect() as reader:
        reader.execute(select(tables().outbox.c.event_id))
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(UpgradeBlocked, match=rf"revision 0004 .*shield_outbox .*pid {pid}"):
            Schema(old).upgrade(patience=SOON)

    assert Schema(old).current() == OLD


def test_interrupted_index_is_dropped_and_built_again(
    old: Engine, an_event: dict[str, Any]
) -> None:
    index = "shield_outbox_check_idx"
    Schema(old).upgrade("0004")
    with old.begin() as connection:
        connection.execute(text(f"DROP INDEX {index}"))

    with old.connect() as writer:
        writer.execute(insert(tables().outbox).values(an_event))
        with pytest.raises(UpgradeBlocked, match=f"{index} waited for older transactions"):
            Schema(old).upgrade("0004", patience=SOON)
        assert validity(old, index) is False
        writer.commit()

    Schema(old).upgrade("0004")
    assert validity(old, index) is True


@contextmanager
def deadlock_with(
    upgrade: Engine, first: str, *, then: str, after: str
) -> Iterator[Callable[[], bool]]:
    """Hold the locks of `first`; the yielded call closes a lock cycle once the upgrade waits for
    them.

    PostgreSQL aborts the upgrade after the time `after`: the other transaction does not check for
    deadlocks.
    """
    with upgrade.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = upgrade.url.database
        connection.execute(text(f"ALTER DATABASE {name} SET deadlock_timeout = '{after}'"))
    waiting = text(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE :pid = ANY(pg_blocking_pids(pid)))"
    )
    with upgrade.connect() as other, ThreadPoolExecutor(1) as thread:
        other.execute(text("SET deadlock_timeout = '10min'"))
        other.execute(text(first))
        pid = other.scalar(text("SELECT pg_backend_pid()"))

        def closes_the_cycle() -> bool:
            with upgrade.connect() as connection:
                if not connection.scalar(waiting, {"pid": pid}):
                    return False
            ended = thread.submit(lambda: (other.execute(text(then)), other.commit()))
            ended.result(PATIENCE_S)
            return True

        yield closes_the_cycle


def test_revision_aborted_by_a_deadlock_runs_again(
    old: Engine, eventually: Callable[..., None]
) -> None:
    with (
        deadlock_with(
            old, "ANALYZE shield_outbox", then="ANALYZE shield_inbox", after="4s"
        ) as close,
        upgrading(old) as (upgrade, notices),
    ):
        eventually(close, "the upgrade waits for the other transaction", PATIENCE_S)
        upgrade.result(PATIENCE_S)

    Schema(old).check()
    # On a machine that is too busy for the deadlock, the upgrade's lock timeout of 5 s comes first.
    assert "revision 0004: w" in notices[0]
    assert "attempt 1, writers go on" in notices[0]


def test_index_build_aborted_by_a_deadlock_is_repeated(
    old: Engine, an_event: dict[str, Any], eventually: Callable[..., None]
) -> None:
    index = "shield_outbox_check_idx"
    Schema(old).upgrade("0004")
    with old.begin() as connection:
        connection.execute(text(f"DROP INDEX {index}"))
    write(old, an_event)

    locks = "UPDATE shield_outbox SET attempts = attempts"
    with (
        deadlock_with(old, locks, then="ANALYZE shield_outbox", after="10s") as close,
        upgrading(old) as (upgrade, notices),
    ):
        eventually(close, "the build waits for the other transaction", PATIENCE_S)
        upgrade.result(PATIENCE_S)

    assert validity(old, index) is True
    assert any(f"{index}: was ended by a deadlock, attempt 1" in line for line in notices)


def test_check_names_the_rest_of_an_interrupted_upgrade(engine: Engine, releases: Any) -> None:
    Schema(engine).upgrade()
    releases.install("later")
    Schema(engine).upgrade()
    Schema(engine).check()
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX shield_outbox_note_idx"))

    with pytest.raises(
        SchemaMismatch, match=r"interrupted before shield_outbox_note_idx .*upgrade"
    ):
        Schema(engine).check()

    with engine.begin() as connection:
        upgrade_with(connection)
    Schema(engine).check()
    assert Schema(engine).current() == LATER


def test_several_processes_upgrade_tables_in_use(old: Engine) -> None:
    with ThreadPoolExecutor(4) as threads:
        for upgrade in [threads.submit(Schema(old).upgrade) for _ in range(4)]:
            upgrade.result(PATIENCE_S)

    Schema(old).check()


def test_server_timeouts_do_not_abort_an_upgrade(
    old: Engine, eventually: Callable[..., None]
) -> None:
    with old.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"ALTER DATABASE {old.url.database} SET {setting} = '2s'"))
    building = text(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' "
        "AND datname = current_database() AND now() - query_start > interval '3 s'"
    )

    with old.connect().execution_options(isolation_level="REPEATABLE READ") as reader:
        reader.execute(text("SET idle_in_transaction_session_timeout = 0"))
        reader.execute(text("SELECT count(*) FROM pg_class"))
        with upgrading(old) as (upgrade, _):

            def is_building() -> bool:
                with old.connect() as connection:
                    return bool(connection.scalar(building))

            eventually(is_building, "an index is built for longer than the timeouts", PATIENCE_S)
            reader.rollback()
            upgrade.result(PATIENCE_S)

    Schema(old).check()


PARK = text(
    "INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, reason,"
    " record_value, record_headers, parked_at)"
    " SELECT 'g', 't.commit', 0, n, 'no event', 'x', '[]', now()"
    " FROM generate_series(CAST(:first AS int), CAST(:last AS int)) n"
)


def digests(engine: Engine) -> Counter[str]:
    """Return how many parked records have each digest."""
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT digest FROM shield_parked")).all())


def test_digests_of_parked_records_are_filled_in_batches(old: Engine) -> None:
    Schema(old).upgrade("0013")
    with old.begin() as connection:
        connection.execute(PARK, {"first": 0, "last": 249})
    with old.connect() as operator:

        def lock(line: str) -> None:
            if "digests of parked records reads" in line:
                row = "SELECT FROM shield_parked WHERE record_offset = 150 FOR UPDATE"
                operator.execute(text(row))

        with pytest.raises(UpgradeBlocked, match="digests of parked records waited"):
            Schema(old).upgrade(patience=SOON, notice=lock)
        # Writers go on, and park a record again that the former release has already parked.
        with old.begin() as connection:
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
            connection.execute(PARK, {"first": 250, "last": 259})
        record = ReceivedRecord("t.commit", 0, 249, None, b"x")
        SqlInboxStore(old, tables()).receive("g", [], [Parked(record=record, reason="no event")])
    made = digests(old)
    assert 0 < made["pending"] < 250
    with pytest.raises(SchemaMismatch, match="at revision 0014"):
        Schema(old).check()

    Schema(old).upgrade()

    Schema(old).check()
    # The former release has parked ten without a digest.
    assert sorted(digests(old).values()) == [10, 250]


def test_host_upgrades_in_its_own_transaction(old: Engine) -> None:
    with old.connect() as connection, connection.begin() as transaction:
        upgrade_with(connection)
        transaction.rollback()
    assert Schema(old).current() == OLD

    with old.begin() as connection:
        upgrade_with(connection)
    Schema(old).check()
