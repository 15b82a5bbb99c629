from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, inspect, select, text

from shieldtx.errors import ConfigurationError, SchemaMismatch, TransactionRefused
from shieldtx.store.schema import OWN_TABLES, Schema, schema_name, upgrade_with
from shieldtx.store.tables import tables


def table_names(engine: Engine, schema: str | None = None) -> set[str]:
    return set(inspect(engine).get_table_names(schema))


def test_upgrade_makes_every_table_and_a_row_for_each_shard(engine: Engine) -> None:
    Schema(engine, shards=16).upgrade()

    assert table_names(engine) == OWN_TABLES
    with engine.connect() as connection:
        shards = connection.scalars(select(tables().shard.c.shard)).all()
    assert sorted(shards) == list(range(16))


def test_upgrading_again_changes_nothing(engine: Engine, an_event: dict[str, Any]) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(an_event))

    schema.upgrade()

    assert schema.current() == "0006"
    with engine.connect() as connection:
        assert connection.scalar(select(tables().outbox.c.event_id)) == an_event["event_id"]
        assert connection.scalar(select(func.count()).select_from(tables().shard)) == 64


def test_down_drops_everything_and_up_makes_it_again(
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


def test_going_down_where_nothing_is_does_nothing(engine: Engine) -> None:
    Schema(engine, schema="messages").downgrade("base")

    assert not inspect(engine).has_schema("messages")


def test_a_schema_with_tables_of_others_in_it_survives_the_downgrade(engine: Engine) -> None:
    schema = Schema(engine, schema="messages")
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE messages.theirs (id int)"))

    schema.downgrade("base")

    assert table_names(engine, "messages") == {"theirs"}


def test_a_schema_that_was_there_before_survives_the_downgrade(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA messages"))
    schema = Schema(engine, schema="messages")

    schema.upgrade()
    schema.downgrade("base")

    assert inspect(engine).has_schema("messages")
    assert not table_names(engine, "messages")


def test_rows_survive_the_next_release_and_the_way_back(
    engine: Engine, an_event: dict[str, Any], releases: Any
) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(insert(tables().outbox).values(an_event))
    releases.install("later")

    schema.upgrade()

    assert schema.current() == "0007"
    with engine.connect() as connection:
        row = connection.execute(text("SELECT event_id, note FROM shield_outbox")).one()
    assert tuple(row) == (an_event["event_id"], None)

    schema.downgrade("0006")

    assert schema.current() == "0006"
    with engine.connect() as connection:
        assert connection.scalar(select(tables().outbox.c.event_id)) == an_event["event_id"]


def test_events_of_before_are_no_half_messages(engine: Engine, an_event: dict[str, Any]) -> None:
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


def test_before_postgresql_16_there_is_no_index_that_keeps_updates_from_being_hot(
    engine: Engine,
) -> None:
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


def test_steps_can_be_taken_one_by_one(engine: Engine, releases: Any) -> None:
    releases.install("later")
    schema = Schema(engine)

    schema.upgrade("0006")
    assert schema.current() == "0006"
    schema.upgrade("+1")
    assert schema.current() == "0007"
    schema.downgrade("-1")
    assert schema.current() == "0006"


def test_two_schemas_live_side_by_side(engine: Engine, an_event: dict[str, Any]) -> None:
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
    assert orders.current() == "0006"
    assert stock.current() is None
    assert not table_names(engine)


def test_a_schema_named_like_a_keyword_works(engine: Engine) -> None:
    schema = Schema(engine, schema="order")
    schema.upgrade()
    schema.check()
    schema.downgrade("base")

    assert not inspect(engine).has_schema("order")


def test_a_role_without_the_right_to_make_schemas_can_use_one_that_is_there(
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
def test_a_schema_that_would_need_quotes_is_refused_naming_the_setting(name: str) -> None:
    with pytest.raises(ConfigurationError, match="SHIELDTX_SCHEMA"):
        schema_name(name, setting="SHIELDTX_SCHEMA")


def test_a_plain_name_and_none_are_schemas() -> None:
    assert [schema_name(name) for name in ("messages", "_m2", "a" * 63, None)] == [
        "messages",
        "_m2",
        "a" * 63,
        None,
    ]


def test_upgrade_refuses_a_bad_schema_before_it_touches_the_database(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        Schema(engine, schema="Messages").upgrade()

    assert not table_names(engine)


@pytest.mark.parametrize("shards", [0, -1, 32_769])
def test_a_number_of_shards_that_cannot_be_is_refused(engine: Engine, shards: int) -> None:
    with pytest.raises(ConfigurationError, match="shards"):
        Schema(engine, shards=shards).upgrade()

    assert not table_names(engine)


def test_the_largest_number_of_shards_works(engine: Engine) -> None:
    Schema(engine, shards=32_768).upgrade()
    Schema(engine, shards=32_768).check()


def test_an_unknown_revision_is_refused_and_nothing_stays_behind(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="no way from revision base to 0815"):
        Schema(engine, schema="messages").upgrade("0815")

    assert not inspect(engine).has_schema("messages")


def test_upgrade_refuses_another_number_of_shards_and_changes_nothing(
    engine: Engine, releases: Any
) -> None:
    Schema(engine, shards=64).upgrade()
    releases.install("later")

    with pytest.raises(SchemaMismatch, match="64 shards, not for 32: set shards to 64"):
        Schema(engine, shards=32).upgrade()

    assert Schema(engine).current() == "0006"


def test_an_engine_in_autocommit_still_migrates_all_or_nothing(database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE shield_audit (in_the_way int)"))

    with pytest.raises(Exception, match="shield_audit"):
        Schema(engine).upgrade()

    assert table_names(engine) == {"shield_audit"}
    engine.dispose()


def test_a_callers_connection_in_autocommit_is_refused(database_url: str) -> None:
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(TransactionRefused, match="AUTOCOMMIT"):
        upgrade_with(connection)

    assert not table_names(engine)
    engine.dispose()
