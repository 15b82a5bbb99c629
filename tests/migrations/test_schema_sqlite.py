"""SQLite suffices for a user's own tests: the same commands, one file, no schemas."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, create_engine, func, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.pool import StaticPool

from shieldtx.domain.states import OUTBOX
from shieldtx.errors import ConfigurationError, SchemaMismatch
from shieldtx.store.migrations import OWN_TABLES
from shieldtx.store.schema import Schema, include_name, upgrade_with
from shieldtx.store.tables import tables


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'test.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


def definitions(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        found = connection.execute(
            text(
                # Triggers hold the number of shards: it is a property of the tables, and no model
                # has it.
                "SELECT name, sql FROM sqlite_master "
                "WHERE name NOT LIKE '%version%' AND sql <> '' AND type <> 'trigger'"
            )
        )
        return sorted((name, " ".join(sql.split())) for name, sql in found)


def test_sqlite_upgrades_downgrades_and_upgrades_again(sqlite: Engine) -> None:
    schema = Schema(sqlite, shards=8)
    schema.upgrade()
    schema.check()
    assert set(inspect(sqlite).get_table_names()) == OWN_TABLES

    schema.downgrade("base")
    assert inspect(sqlite).get_table_names() == []
    with pytest.raises(SchemaMismatch, match="shieldtx db upgrade"):
        schema.check()

    schema.upgrade()
    schema.check()
    with sqlite.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables().shard)) == 8


def test_sqlite_upgrades_in_memory() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    Schema(engine).upgrade()
    Schema(engine).check()
    engine.dispose()


def test_sqlite_tables_are_the_same_for_migrations_and_models(
    sqlite: Engine, tmp_path: Path
) -> None:
    Schema(sqlite).upgrade()
    modelled = create_engine(f"sqlite:///{tmp_path / 'modelled.db'}")
    tables().metadata.create_all(modelled)

    assert sorted_columns(definitions(sqlite)) == sorted_columns(definitions(modelled))
    with sqlite.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": include_name})
        assert compare_metadata(context, tables().metadata) == []
    modelled.dispose()


def sorted_columns(found: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Sort the constraints of each table, and remove the quotes of renamed ones."""
    plain = [(name, sql.replace(f'"{name}"', name)) for name, sql in found]
    return [(name, sorted(sql.removesuffix(")").rstrip().split(", "))) for name, sql in plain]


def test_sqlite_refuses_an_unknown_status(sqlite: Engine, an_event: dict[str, Any]) -> None:
    Schema(sqlite).upgrade()
    outbox = tables().outbox

    with sqlite.begin() as connection:
        connection.execute(outbox.insert().values(an_event | {"seq": 1}))
        for state in OUTBOX.states:
            connection.execute(outbox.update().values(status=state))
        with pytest.raises(IntegrityError, match="shield_outbox_status_check"):
            connection.execute(outbox.update().values(status="LOST"))


def test_sqlite_migration_that_fails_leaves_no_changes(sqlite: Engine) -> None:
    with sqlite.begin() as connection:
        connection.execute(text("CREATE TABLE shield_audit (in_the_way int)"))

    with pytest.raises(Exception, match="shield_audit"):
        Schema(sqlite).upgrade()

    assert inspect(sqlite).get_table_names() == ["shield_audit"]


def test_sqlite_upgrade_rolls_back_with_the_host_transaction(sqlite: Engine) -> None:
    with sqlite.connect() as connection, connection.begin() as transaction:
        connection.execute(text("CREATE TABLE theirs (id int)"))
        upgrade_with(connection)
        transaction.rollback()

    assert set(inspect(sqlite).get_table_names()) <= {"theirs"}


def test_sqlite_threads_upgrade_concurrently(sqlite: Engine) -> None:
    with ThreadPoolExecutor(4) as threads:
        for upgrade in [threads.submit(Schema(sqlite).upgrade) for _ in range(4)]:
            upgrade.result(60)

    Schema(sqlite).check()


def test_sqlite_refuses_a_schema(sqlite: Engine) -> None:
    with pytest.raises(ConfigurationError, match="schema: sqlite has none"):
        Schema(sqlite, schema="messages").upgrade()
