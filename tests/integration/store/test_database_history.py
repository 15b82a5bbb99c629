"""The facts by which a database is recognised again, queried from real databases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, delete, event, insert, select, text, update

from shieldtx.domain.events import new_event_id
from shieldtx.domain.states import InboxStatus, OutboxStatus
from shieldtx.embedded.postgres import EmbeddedPostgres
from shieldtx.ports.database_history import DatabaseHistory, LostRow, Remains
from shieldtx.store.database_history import SqlDatabaseHistory
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.conftest import wait
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


def write(
    engine: Engine,
    event_id: UUID,
    status: OutboxStatus = OutboxStatus.PROCESSED,
    *,
    age: float = 0,
    **columns: bool,
) -> UUID:
    row = outbox_row("orders", event_id, status, now=datetime.now(UTC), age=age)
    with engine.begin() as connection:
        connection.execute(insert(OUTBOX), [{**row, **columns}])
    return event_id


def lost(history: SqlDatabaseHistory, before: DatabaseHistory) -> set[str]:
    return {row.table for row in history.lacks(before)}


def receive(engine: Engine, event_id: UUID, *, age: int = 0) -> UUID:
    now = datetime.now(UTC)
    row = inbox_row("stock", event_id, InboxStatus.PROCESSED, group="g", now=now, age=age)
    with engine.begin() as connection:
        connection.execute(insert(INBOX), [row])
    return event_id


def test_history_is_unchanged_without_writes(history: SqlDatabaseHistory) -> None:
    once = history.now()

    assert once == history.now()
    assert once.newest == (None, None)
    assert once.system
    assert int(once.timeline, 16) >= 1
    assert history.lacks(once) == ()


def test_databases_of_one_server_share_its_id_but_differ(
    history: SqlDatabaseHistory, databases: MigratedDatabases
) -> None:
    with databases.database(4, SCHEMA) as url:
        other = create_engine(url)
        found = SqlDatabaseHistory(other, tables(SCHEMA)).now()
        other.dispose()
    mine = history.now()

    assert (found.system, found.timeline) == (mine.system, mine.timeline)
    assert found.objects != mine.objects


def test_newest_rows_are_reported_as_lost(engine: Engine, history: SqlDatabaseHistory) -> None:
    write(engine, new_event_id())
    sent, received = write(engine, new_event_id()), receive(engine, new_event_id())
    before = history.now()
    assert before.newest == (sent, received)
    write(engine, new_event_id())
    assert history.lacks(before) == ()

    with engine.begin() as connection:
        connection.execute(delete(OUTBOX).where(OUTBOX.c.event_id == sent))
    assert lost(history, before) == {"outbox"}
    with engine.begin() as connection:
        connection.execute(delete(INBOX))
    assert lost(history, before) == {"outbox", "inbox"}


def test_lost_row_with_an_older_id_is_found_by_its_settlement(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    late = new_event_id()
    receive(engine, new_event_id())
    # As for an event that was delayed, or is redelivered long after it was written.
    receive(engine, late)
    before = history.now()
    assert before.newest[1] != late

    with engine.begin() as connection:
        connection.execute(delete(INBOX).where(INBOX.c.event_id == late))

    assert history.lacks(before) == (LostRow(table="inbox", what="what was its last settlement"),)


@pytest.mark.parametrize("age", [0, 0.5, 30, 600, 10_000, 100_000])
def test_last_settlement_is_found_at_any_age(
    engine: Engine, history: SqlDatabaseHistory, age: float
) -> None:
    write(engine, new_event_id(), age=age + 200_000)
    last = write(engine, new_event_id(), age=age)
    write(engine, new_event_id(), age=age + 100_000)
    # Set manually, to a time in the future.
    write(engine, new_event_id(), age=-10_000)

    found, _ = history.now().latest_settled

    assert found is not None
    assert found.event_id == last


@pytest.mark.parametrize("columns", [{}, {"waiting": True}, {"waiting": True, "holds_key": True}])
def test_lost_open_row_with_an_older_id_is_found_by_its_number(
    engine: Engine, history: SqlDatabaseHistory, columns: dict[str, bool]
) -> None:
    late = new_event_id()
    write(engine, new_event_id(), OutboxStatus.INIT)
    write(engine, late, OutboxStatus.INIT, **columns)
    before = history.now()
    with engine.begin() as connection:
        # A row that was settled since is not lost.
        settled = {"status": "PROCESSED", "settled_at": datetime.now(UTC), "waiting": False}
        connection.execute(update(OUTBOX).where(OUTBOX.c.event_id == late).values(settled))
    assert history.lacks(before) == ()

    with engine.begin() as connection:
        connection.execute(delete(OUTBOX).where(OUTBOX.c.event_id == late))

    assert history.lacks(before) == (LostRow(table="outbox", what="what was its latest open row"),)


def test_row_that_was_settled_again_counts_as_lost(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    sent = write(engine, new_event_id())
    before = history.now()
    with engine.begin() as connection:
        # As after the restore of a copy with the open row, which the relay sends again.
        later = {"settled_at": datetime.now(UTC)}
        connection.execute(update(OUTBOX).where(OUTBOX.c.event_id == sent).values(later))

    assert history.lacks(before) == (LostRow(table="outbox", what="what was its last settlement"),)


def test_history_does_not_scan_a_large_table(engine: Engine, history: SqlDatabaseHistory) -> None:
    now = datetime.now(UTC)
    age = iter(range(20_000))
    with engine.begin() as connection:
        connection.execute(
            insert(OUTBOX),
            [
                outbox_row("orders", new_event_id(), OutboxStatus.PROCESSED, now=now, age=next(age))
                for _ in range(20_000)
            ],
        )
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(text("VACUUM ANALYZE shield.shield_outbox"))
        if connection.dialect.server_version_info < (16,):
            pytest.skip("no index on settled_at")
    plans = []

    def explain(connection, _cursor, statement, parameters, *_):
        if "shield_outbox" in statement and "to_regclass" not in statement:
            driven = connection.connection.driver_connection
            plans.extend(row[0] for row in driven.execute(f"EXPLAIN {statement}", parameters))

    event.listen(engine, "before_cursor_execute", explain)
    history.now()

    assert plans
    assert not [line for line in plans if "Seq Scan" in line]


def test_ids_without_a_time_are_not_newest_rows(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    sent = write(engine, new_event_id())
    write(engine, NEWEST_OF_ALL)

    assert history.now().newest == (sent, None)


def test_account_without_rights_on_the_server_id_gets_the_rest(
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
    # The archive returns nothing: the server replays its own WAL completely.
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
        # The server accepts connections before the replay completes.
        wait(lambda: history.now().timeline != "", "the recovery ends")
        after = history.now()
        engine.dispose()

    assert (before.timeline, after.timeline) == ("00000001", "00000002")
    assert after == replace(before, timeline="00000002")


A_WEEK = timedelta(days=7)


def purge_noted(engine: Engine, *, age: float) -> None:
    until = datetime.now(UTC) - timedelta(minutes=age)
    with engine.begin() as connection:
        connection.execute(
            insert(tables(SCHEMA).purged), [{"purged_table": "inbox", "purged_until": until}]
        )


def changed(engine: Engine, event_id: UUID, **columns: object) -> None:
    with engine.begin() as connection:
        of_it = update(OUTBOX).where(OUTBOX.c.event_id == event_id)
        connection.execute(of_it.values(**columns))


def deleted(engine: Engine, *event_ids: UUID) -> None:
    with engine.begin() as connection:
        for table in (OUTBOX, INBOX):
            connection.execute(delete(table).where(table.c.event_id.in_(event_ids)))


def test_lost_row_that_no_purge_removed_shows_a_restored_copy(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    kept = write(engine, new_event_id(), age=90)
    lost = write(engine, new_event_id(), age=60)
    write(engine, new_event_id(), OutboxStatus.INIT, age=30)
    before = history.now()
    settled = before.latest_settled[0]
    assert settled is not None
    assert history.remains_of(before, retention=A_WEEK) == Remains(has_settlement=True)

    deleted(engine, lost)
    assert history.remains_of(before, retention=A_WEEK) == Remains(copied_before=settled.settled_at)
    assert history.remains_of(before, retention=None).copied_before
    assert history.last_settled(before=settled.settled_at) == settled_at(engine, kept)
    # The row is received or written again, as after a restore with a reset of the offsets.
    write(engine, lost, age=1)
    assert history.remains_of(before, retention=A_WEEK).copied_before

    deleted(engine, kept)
    assert history.last_settled(before=settled.settled_at) is None


def test_an_inbox_lacks_a_row_that_no_purge_has_removed(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    sent, received = write(engine, new_event_id(), age=30), receive(engine, new_event_id())
    before = history.now()
    deleted(engine, sent)
    assert history.inbox_has(before, retention=A_WEEK), "it is the outbox that lacks one"

    deleted(engine, received)
    assert history.inbox_has(before, retention=A_WEEK) is False
    assert history.inbox_has(before, retention=None) is False
    assert history.inbox_has(before, retention=timedelta(0)) is None
    purge_noted(engine, age=-1)
    assert history.inbox_has(before, retention=None) is None
    assert history.inbox_has(history.now(), retention=None), "it had none then"


@pytest.mark.parametrize("time", ["infinity", "-infinity", "20000-01-01"])
def test_impossible_settlement_time_is_ignored_for_an_inbox(
    engine: Engine, history: SqlDatabaseHistory, time: str
) -> None:
    event_id = receive(engine, new_event_id())
    with engine.begin() as connection:
        set_by_hand = text(f"UPDATE {INBOX} SET settled_at = :time WHERE event_id = :id")
        connection.execute(set_by_hand, {"time": time, "id": event_id})
    assert history.inbox_settled_since() is None


def test_an_inbox_is_known_by_its_oldest_settled_row(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    assert history.inbox_settled_since() is None
    oldest = receive(engine, new_event_id(), age=90)
    receive(engine, new_event_id(), age=30)
    with engine.connect() as connection:
        settled = select(INBOX.c.settled_at).where(INBOX.c.event_id == oldest)
        assert history.inbox_settled_since() == connection.scalars(settled).one()


def settled_at(engine: Engine, event_id: UUID) -> datetime:
    with engine.connect() as connection:
        found = connection.scalars(select(OUTBOX.c.settled_at).where(OUTBOX.c.event_id == event_id))
        return found.one()


def test_lost_open_row_shows_a_restored_copy(engine: Engine, history: SqlDatabaseHistory) -> None:
    write(engine, new_event_id(), age=60)
    lost = write(engine, new_event_id(), OutboxStatus.INIT, age=30)
    before = history.now()

    changed(engine, lost, status="PROCESSED", settled_at=datetime.now(UTC))
    assert history.remains_of(before, retention=A_WEEK) == Remains(has_settlement=True)
    deleted(engine, lost)

    assert history.remains_of(before, retention=A_WEEK) == Remains(copied_before=before.asked_at)
    of_an_earlier_release = replace(before, asked_at=None)
    assert history.remains_of(of_an_earlier_release, retention=A_WEEK).copied_before is None


@pytest.mark.parametrize("status", [OutboxStatus.INIT, OutboxStatus.PROCESSED])
def test_a_row_that_was_replayed_since_shows_no_copy(
    engine: Engine, history: SqlDatabaseHistory, status: OutboxStatus
) -> None:
    replayed = write(engine, new_event_id(), age=60)
    before = history.now()
    settled_at = None if status is OutboxStatus.INIT else datetime.now(UTC)
    changed(engine, replayed, status=status, settled_at=settled_at)

    assert history.remains_of(before, retention=A_WEEK) == Remains()


def test_rows_that_a_purge_may_have_removed_show_no_copy(
    engine: Engine, history: SqlDatabaseHistory
) -> None:
    assert history.remains_of(history.now(), retention=A_WEEK) == Remains()
    last, received = write(engine, new_event_id(), age=120), new_event_id()
    receive(engine, received)
    before = history.now()
    deleted(engine, last)

    assert history.remains_of(before, retention=timedelta(hours=1)) == Remains(has_settlement=True)
    assert history.remains_of(before, retention=A_WEEK).copied_before
    purge_noted(engine, age=90)
    assert history.remains_of(before, retention=None) == Remains(has_settlement=True)
