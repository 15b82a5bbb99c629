"""By what a database is known again, asked of real ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, delete, insert, text

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.embedded.postgres import EmbeddedPostgres
from shieldtx.store.database_history import SqlDatabaseHistory
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.spark.planting import inbox_row, outbox_row
from tests.support.migrated_databases import MigratedDatabases

SCHEMA = "shield"
OUTBOX, INBOX = tables(SCHEMA).outbox, tables(SCHEMA).inbox
NEWEST_OF_ALL = UUID("ffffffff-ffff-4fff-bfff-ffffffffffff")


@pytest.fixture
def engine(databases: MigratedDatabases) -> Iterator[Engine]:
    with databases.database(4, SCHEMA) as url:
        engine = create_engine(url)
        yield engine
        engine.dispose()


@pytest.fixture
def history(engine: Engine) -> SqlDatabaseHistory:
    return SqlDatabaseHistory(engine, tables(SCHEMA))


def write(engine: Engine, event_id: UUID) -> UUID:
    row = outbox_row("orders", event_id, OutboxStatus.PROCESSED, now=datetime.now(UTC), age=0)
    with engine.begin() as connection:
        connection.execute(insert(OUTBOX), [row])
    return event_id


def receive(engine: Engine, event_id: UUID) -> UUID:
    now = datetime.now(UTC)
    row = inbox_row("stock", event_id, InboxStatus.PROCESSED, group="g", now=now, age=0)
    with engine.begin() as connection:
        connection.execute(insert(INBOX), [row])
    return event_id


def test_it_is_the_same_as_long_as_nothing_is_written(history: SqlDatabaseHistory) -> None:
    once = history.now()

    assert once == history.now()
    assert once.newest == (None, None)
    assert once.system
    assert int(once.timeline, 16) >= 1
    assert history.lacks(once) == ()


def test_databases_of_one_server_share_its_name_and_are_not_the_same(
    history: SqlDatabaseHistory, databases: MigratedDatabases
) -> None:
    with databases.database(4, SCHEMA) as url:
        other = create_engine(url)
        found = SqlDatabaseHistory(other, tables(SCHEMA)).now()
        other.dispose()
    mine = history.now()

    assert (found.system, found.timeline) == (mine.system, mine.timeline)
    assert found.objects != mine.objects


def test_the_newest_rows_are_missed_when_they_are_gone(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    write(engine, new_event_id())
    sent, received = write(engine, new_event_id()), receive(engine, new_event_id())
    before = history.now()
    assert before.newest == (sent, received)
    write(engine, new_event_id())
    assert history.lacks(before) == ()

    with engine.begin() as connection:
        connection.execute(delete(OUTBOX).where(OUTBOX.c.event_id == sent))
    assert history.lacks(before) == ("outbox",)
    with engine.begin() as connection:
        connection.execute(delete(INBOX))
    assert history.lacks(before) == ("outbox", "inbox")


def test_ids_that_say_nothing_of_time_are_no_newest_rows(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    sent = write(engine, new_event_id())
    write(engine, NEWEST_OF_ALL)

    assert history.now().newest == (sent, None)


def test_an_account_that_may_not_ask_for_the_server_is_told_the_rest(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    role = f"reader_{uuid4().hex}"
    with engine.begin() as connection:
        for statement in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'reads'",
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}",
            "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
        ):
            connection.execute(text(statement))
    reader = create_engine(engine.url.set(username=role, password="reads"))
    found = SqlDatabaseHistory(reader, tables(SCHEMA)).now()
    reader.dispose()

    assert found == replace(history.now(), system=None)


def test_a_recovery_to_a_point_in_time_begins_another_timeline() -> None:
    # Nothing is to be had from the archive: what the server has itself is replayed to its end.
    with EmbeddedPostgres(fsync=False, settings={"restore_command": "false"}) as server:
        engine = create_engine(server.url("postgres"))
        Schema(engine).upgrade()
        history = SqlDatabaseHistory(engine, tables())
        before = history.now()
        engine.dispose()
        server.stop()
        data = server.directory / "data"
        signal = data / "recovery.signal"
        signal.touch()
        shutil.chown(signal, data.stat().st_uid, data.stat().st_gid)
        server.start()
        after = history.now()
        engine.dispose()

    assert (before.timeline, after.timeline) == ("00000001", "00000002")
    assert after == replace(before, timeline="00000002")
