from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, func, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError

from shieldtx.domain.events import shard_of
from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.errors import ConfigurationError, SchemaMismatch, TransactionRefused
from shieldtx.ports.broker import ReceivedRecord
from shieldtx.ports.half_messages import CheckSchedule
from shieldtx.ports.inbox import Parked
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.half_messages import SqlHalfMessageStore
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.migrations import OWN_TABLES
from shieldtx.store.schema import Schema, downgrade_with, upgrade_with
from shieldtx.store.schema_settings import schema_name
from shieldtx.store.tables import tables
from tests.support.revisions import HEAD, LATER


def table_names(engine: Engine, schema: str | None = None) -> set[str]:
    return set(inspect(engine).get_table_names(schema))


def test_upgrade_creates_every_table_and_a_row_per_shard(engine: Engine) -> None:
    Schema(engine, shards=16).upgrade()

    assert table_names(engine) == OWN_TABLES
    with engine.connect() as connection:
        shards = connection.scalars(select(tables().shard.c.shard)).all()
    assert sorted(shards) == list(range(16))


def test_second_upgrade_changes_nothing(engine: Engine, an_event: dict[str, Any]) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(an_event))

    schema.upgrade()

    assert schema.current() == HEAD
    with engine.connect() as connection:
        assert connection.scalar(select(tables().outbox.c.event_id)) == an_event["event_id"]
        assert connection.scalar(select(func.count()).select_from(tables().shard)) == 64


def test_downgrade_drops_everything_and_upgrade_recreates_it(
    engine: Engine, an_event: dict[str, Any]
) -> None:
    schema = Schema(engine, schema="messages")
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables("messages").outbox).values(an_event))

    schema.downgrade("base")

    assert schema.current() is None
    assert not inspect(engine).has_schema("messages")
    assert not table_names(engine)

    schema.upgrade()

    assert table_names(engine, "messages") == OWN_TABLES
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables("messages").outbox)) == 0


def test_downgrade_of_an_empty_database_does_nothing(engine: Engine) -> None:
    Schema(engine, schema="messages").downgrade("base")

    assert not inspect(engine).has_schema("messages")


def test_downgrade_keeps_a_schema_with_foreign_tables(engine: Engine) -> None:
    schema = Schema(engine, schema="messages")
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE messages.theirs (id int)"))

    schema.downgrade("base")

    assert table_names(engine, "messages") == {"theirs"}


def test_downgrade_keeps_a_schema_that_existed_before(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messages"))
    schema = Schema(engine, schema="messages")

    schema.upgrade()
    schema.downgrade("base")

    assert inspect(engine).has_schema("messages")
    assert not table_names(engine, "messages")


def test_rows_survive_the_next_release_and_the_downgrade(
    engine: Engine, an_event: dict[str, Any], releases: Any
) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(an_event))
    releases.install("later")

    schema.upgrade()

    assert schema.current() == LATER
    with engine.connect() as connection:
        row = connection.execute(text("SELECT event_id, note FROM shield_outbox")).one()
    assert tuple(row) == (an_event["event_id"], None)

    schema.downgrade(HEAD)

    assert schema.current() == HEAD
    with engine.connect() as connection:
        assert connection.scalar(select(tables().outbox.c.event_id)) == an_event["event_id"]


def test_events_from_before_half_messages_stay_ordinary(
    engine: Engine, an_event: dict[str, Any]
) -> None:
    schema = Schema(engine)
    schema.upgrade("0003")
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(an_event))

    schema.upgrade("0004")

    o = tables().outbox
    with engine.connect() as connection:
        found = connection.execute(select(o.c.checks, o.c.check_at, o.c.send_delay, o.c.send_at))
        assert found.all() == [(None, None, None, None)]

    schema.downgrade("0003")

    assert "shield_barrier" not in table_names(engine)


@pytest.mark.parametrize("status", ["HALF", "UNRESOLVED"])
def test_downgrade_that_would_orphan_half_messages_is_refused(
    engine: Engine, an_event: dict[str, Any], status: str
) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        half = {"status": status, "checks": 0, "check_at": func.now()}
        connection.execute(insert(tables().outbox).values(an_event | half))

    named = rf"\(1\), .*: {an_event['event_id']}\. `shieldtx half list`"
    with pytest.raises(SchemaMismatch, match=named):
        schema.downgrade("0003")
    with engine.begin() as connection, pytest.raises(SchemaMismatch, match=named):
        downgrade_with(connection, revision="0003")
    assert schema.current() == HEAD

    schema.downgrade("base")
    assert schema.current() is None


LOST_BY = {
    "0001": (
        (
            "INSERT INTO shield_inbox (event_id, consumer_group, source, topic, event_type,"
            " tx_kind, operation, payload, event_time, status, due_at, received_at, together)"
            " SELECT gen_random_uuid(), 'stock', 'orders', 'orders', 'orders.placed', 'COMMIT',"
            " 'INSERT', '{}', now(), 'PROCESSING', now(), now(), true FROM generate_series(1, 5)"
        ),
        r"one of a batch \(5\), .*/stock, .* and others\. Run the consumers",
        "shield_inbox",
    ),
    "0002": (
        (
            "INSERT INTO shield_reconcile_run (run_id, scope, mode, who, started_at, lease_until)"
            " VALUES ('2026-01-01', 'all', 'full', 'ann', now(), now())"
        ),
        r"stored runs .*\(1\), .*: 2026-01-01\. `shieldtx reconcile runs`",
        "shield_reconcile_run",
    ),
    "0004": (
        (
            "INSERT INTO shield_trace (event_id, attempt, outcome, at)"
            " SELECT gen_random_uuid(), n, 'APPLIED', now() FROM generate_series(1, 4) n"
        ),
        r"trace \(4\), .* and others\. Set SHIELDTX_TRACE=false",
        "shield_trace",
    ),
}
"""By the target revision: rows that the downgrade would lose, its error, and their table."""


@pytest.mark.parametrize("revision", sorted(LOST_BY))
def test_lossy_downgrade_is_refused_before_its_first_step(engine: Engine, revision: str) -> None:
    rows, refusal, table = LOST_BY[revision]
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(text(rows))

    with pytest.raises(SchemaMismatch, match=refusal):
        schema.downgrade(revision)
    assert schema.current() == HEAD

    with engine.begin() as connection:
        connection.execute(text(f"DELETE FROM {table}"))
    schema.downgrade(revision)
    assert schema.current() == revision


def test_indexes_on_settled_rows_need_postgresql_16(
    engine: Engine,
) -> None:
    """Before 16, such an index keeps updates from being HOT."""

    def of_settled() -> set[str]:
        with engine.connect() as connection:
            names = connection.scalars(text("SELECT indexname FROM pg_indexes"))
            return {name for name in names if name.endswith("_settled_idx")}

    schema = Schema(engine)
    schema.upgrade()
    assert of_settled() == {"shield_outbox_settled_idx", "shield_inbox_settled_idx"}

    schema.downgrade("0005")
    engine.dialect.server_version_info = (15, 14)  # type: ignore[attr-defined]
    schema.upgrade()
    assert of_settled() == set()

    schema.downgrade("0005")
    assert schema.current() == "0005"


def test_revisions_can_be_applied_one_by_one(engine: Engine, releases: Any) -> None:
    releases.install("later")
    schema = Schema(engine)

    schema.upgrade(HEAD)
    assert schema.current() == HEAD
    schema.upgrade("+1")
    assert schema.current() == LATER
    schema.downgrade("-1")
    assert schema.current() == HEAD


def test_two_schemas_are_independent(engine: Engine, an_event: dict[str, Any]) -> None:
    orders, stock = Schema(engine, schema="orders"), Schema(engine, schema="stock", shards=8)
    orders.upgrade()
    stock.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables("orders").outbox).values(an_event))

    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables("stock").outbox)) == 0
        assert connection.scalar(select(func.count()).select_from(tables("stock").shard)) == 8

    stock.downgrade("base")

    orders.check()
    assert orders.current() == HEAD
    assert stock.current() is None
    assert not table_names(engine)


def test_schema_named_like_a_keyword_works(engine: Engine) -> None:
    schema = Schema(engine, schema="order")
    schema.upgrade()
    schema.check()
    schema.downgrade("base")

    assert not inspect(engine).has_schema("order")


def test_role_without_create_right_can_use_an_existing_schema(
    engine: Engine,
) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("CREATE ROLE shield_app_without_create"))
        connection.execute(text("CREATE SCHEMA messages AUTHORIZATION shield_app_without_create"))
        connection.execute(text("SET LOCAL ROLE shield_app_without_create"))

        upgrade_with(connection, schema="messages")

        owner = connection.scalar(
            text("SELECT tableowner FROM pg_tables WHERE tablename = 'shield_outbox'")
        )
        transaction.rollback()
    assert owner == "shield_app_without_create"


@pytest.mark.parametrize(
    "name", ["", "Messages", "1st", "my schema", 'a"b', "a;b", "pg_mine", "a" * 64, "messages\n"]
)
def test_schema_that_needs_quotes_is_refused_by_its_setting(name: str) -> None:
    with pytest.raises(ConfigurationError, match="SHIELDTX_SCHEMA"):
        schema_name(name, setting="SHIELDTX_SCHEMA")


def test_plain_name_and_none_are_schemas() -> None:
    assert [schema_name(name) for name in ("messages", "_m2", "a" * 63, None)] == [
        "messages",
        "_m2",
        "a" * 63,
        None,
    ]


def test_invalid_schema_is_refused_before_any_statement(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        Schema(engine, schema="Messages").upgrade()

    assert not table_names(engine)


@pytest.mark.parametrize("shards", [0, -1, 32_769])
def test_impossible_number_of_shards_is_refused(engine: Engine, shards: int) -> None:
    with pytest.raises(ConfigurationError, match="shards"):
        Schema(engine, shards=shards).upgrade()

    assert not table_names(engine)


def test_largest_number_of_shards_works(engine: Engine) -> None:
    Schema(engine, shards=32_768).upgrade()
    Schema(engine, shards=32_768).check()


def test_unknown_revision_is_refused_without_changes(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no revision 0815 \(newest: \d+\)"):
        Schema(engine, schema="messages").upgrade("0815")

    assert not inspect(engine).has_schema("messages")


def test_upgrade_refuses_another_number_of_shards_unchanged(engine: Engine, releases: Any) -> None:
    Schema(engine, shards=64).upgrade()
    releases.install("later")

    with pytest.raises(SchemaMismatch, match="64 shards, not for 32: set SHIELDTX_SHARDS=64"):
        Schema(engine, shards=32).upgrade()

    assert Schema(engine).current() == HEAD


def test_autocommit_engine_migrates_all_or_nothing(database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE shield_audit (in_the_way int)"))

    with pytest.raises(Exception, match="shield_audit"):
        Schema(engine).upgrade()

    assert table_names(engine) == {"shield_audit"}
    engine.dispose()


def test_autocommit_connection_of_the_host_is_refused(database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
        upgrade_with(connection)

    assert not table_names(engine)
    engine.dispose()


@pytest.mark.parametrize("schema", [None, "order"])
def test_events_outside_of_the_shards_move_to_their_shards(
    engine: Engine, an_event: dict[str, Any], schema: str | None
) -> None:
    made = Schema(engine, schema=schema, shards=16)
    made.upgrade("0006")
    outbox = tables(schema).outbox
    rows = [an_event | {"event_id": uuid4(), "key": key, "shard": 40} for key in ("a", "b", None)]
    with engine.begin() as connection:
        for row in [*rows, an_event | {"shard": 7, "key": "c"}]:
            connection.execute(outbox.insert().values(row))

    Schema(engine, schema=schema).upgrade()

    with engine.connect() as connection:
        found = {row.event_id: row.shard for row in connection.execute(select(outbox))}
        for row in rows:
            assert found[row["event_id"]] == shard_of(row["key"], row["event_id"], 16)
        assert found[an_event["event_id"]] == 7, "it is sent from where it lies"
        assert connection.scalar(
            text("SELECT convalidated FROM pg_constraint WHERE conname LIKE '%shard_check'")
        )
        # The claims of a running relay then start from the beginning, below the moved rows.
        assert set(connection.scalars(select(tables(schema).shard.c.epoch))) == {1}


def test_parked_records_get_a_digest_in_their_key(engine: Engine) -> None:
    schema = Schema(engine)
    schema.upgrade("0013")
    park = text(
        "INSERT INTO shield_parked (consumer_group, topic, record_partition, record_offset, reason,"
        " record_key, record_value, record_headers, parked_at)"
        " VALUES ('g', 't.commit', 0, 7, 'no event', NULL, 'x', '[]', now())"
    )
    with engine.begin() as connection:
        connection.execute(park)

    schema.upgrade()

    store = SqlInboxStore(engine, tables())
    for value in (b"x", b"of the recreated topic"):
        record = ReceivedRecord("t.commit", 0, 7, None, value)
        store.receive("g", [], [Parked(record=record, reason="no event")])
    with engine.connect() as connection:
        kept = connection.scalars(select(tables().parked.c.record_value)).all()
    assert sorted(kept) == [b"of the recreated topic", b"x"]
    with pytest.raises(
        SchemaMismatch, match=r"share.* \(1\), .*: g/t\.commit/0/7\. Delete all but"
    ):
        schema.downgrade("0013")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM shield_parked WHERE record_value <> 'x'"))
    schema.downgrade("0013")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shield_parked")) == 1


def test_upgrade_without_a_number_keeps_the_shards(engine: Engine) -> None:
    Schema(engine, shards=16).upgrade("0006")

    Schema(engine).upgrade()
    Schema(engine).check()

    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables().shard)) == 16


def test_half_messages_with_lost_checks_are_checked_again(
    engine: Engine, an_event: dict[str, Any]
) -> None:
    schema = Schema(engine, shards=8)
    schema.upgrade("0012")
    too_old = datetime.now(UTC) + timedelta(days=1)
    half = an_event | {"status": "HALF", "waiting": True, "due_at": too_old}
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(half))
        connection.execute(insert(tables().outbox).values(an_event | {"event_id": uuid4()}))

    schema.upgrade()

    plan = CheckSchedule()
    store = SqlHalfMessageStore(engine, tables(), plan=plan)
    assert [c.envelope.id for c in store.claim_checks("orders.placed", limit=9).checks] == [
        half["event_id"]
    ]


def test_half_message_is_decided_whatever_its_check_columns(
    engine: Engine, an_event: dict[str, Any]
) -> None:
    Schema(engine, shards=8).upgrade()
    half = an_event | {"status": "HALF", "waiting": True}
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(half))
    admin = SqlHalfMessageAdmin(engine, tables())

    [listed] = admin.latest(limit=9)
    assert admin.find(half["event_id"]) == listed
    admin.decide([listed], LocalOutcome.ROLLBACK, who="ann")

    found = admin.find(half["event_id"])
    assert found is None or found.status is OutboxStatus.DISCARDED
    assert admin.latest(limit=9) == []


def test_discarded_rows_prevent_a_downgrade(engine: Engine, an_event: dict[str, Any]) -> None:
    schema = Schema(engine)
    schema.upgrade("0014")
    now = datetime.now(UTC)
    received = {name: an_event[name] for name in set(an_event) & {c.name for c in tables().inbox.c}}
    received |= {"consumer_group": "g", "status": "DEAD", "tx_kind": "ROLLBACK"}
    received |= {"event_time": now, "received_at": now, "settled_at": now}
    i, p = tables().inbox, tables().parked
    with engine.begin() as connection:
        connection.execute(insert(i).values(received))
    with pytest.raises(IntegrityError, match="status_check"), engine.begin() as connection:
        connection.execute(update(i).values(status="DISCARDED"))

    schema.upgrade()

    record = ReceivedRecord("t.commit", 0, 7, None, b"x")
    SqlInboxStore(engine, tables()).receive("g", [], [Parked(record=record, reason="no event")])
    with engine.begin() as connection:
        connection.execute(update(i).values(status="DISCARDED"))
        assert connection.scalar(
            text("SELECT convalidated FROM pg_constraint WHERE conname='shield_inbox_status_check'")
        )
    with pytest.raises(SchemaMismatch, match=f"are DISCARDED .*: {an_event['event_id']}. The"):
        schema.downgrade("0014")
    with engine.begin() as connection:
        connection.execute(update(i).values(status="DEAD"))
        connection.execute(update(p).values(discarded_at=now))
    with pytest.raises(SchemaMismatch, match=r"would wait for an operator again: g/t\.commit/0/7"):
        schema.downgrade("0014")
    with engine.begin() as connection:
        connection.execute(update(p).values(discarded_at=None))

    schema.downgrade("0014")

    assert schema.current() == "0014"
    with pytest.raises(IntegrityError, match="status_check"), engine.begin() as connection:
        connection.execute(update(i).values(status="DISCARDED"))
    schema.upgrade()
    schema.check()
