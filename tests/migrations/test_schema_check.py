from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text

from shieldtx.errors import SchemaMismatch
from shieldtx.store.schema import Schema
from tests.support.revisions import HEAD, LATER


def test_check_accepts_upgraded_tables(engine: Engine) -> None:
    schema = Schema(engine, schema="messages", shards=8)
    schema.upgrade()
    schema.check()

    assert schema.current() == HEAD


def test_check_of_an_empty_database_asks_for_an_upgrade(engine: Engine) -> None:
    schema = Schema(engine, schema="messages")

    assert schema.current() is None
    with pytest.raises(
        SchemaMismatch, match=r"messages do not exist yet: run `shieldtx db upgrade`"
    ):
        schema.check()


def test_check_after_a_downgrade_asks_for_an_upgrade(engine: Engine) -> None:
    schema = Schema(engine)
    schema.upgrade()
    schema.downgrade("base")

    with pytest.raises(SchemaMismatch, match="shieldtx db upgrade"):
        schema.check()


def test_check_of_older_tables_asks_for_an_upgrade(engine: Engine, releases: Any) -> None:
    schema = Schema(engine)
    schema.upgrade()
    releases.install("later")

    with pytest.raises(
        SchemaMismatch,
        match=f"at revision {HEAD}, this shieldtx needs {LATER}: run `shieldtx db upgrade`",
    ):
        schema.check()

    schema.upgrade()
    schema.check()


def test_check_of_newer_tables_asks_for_a_newer_shieldtx(engine: Engine, releases: Any) -> None:
    schema = Schema(engine)
    releases.install("later")
    schema.upgrade()
    releases.install("this")

    for refused in (schema.check, schema.upgrade, lambda: schema.downgrade("base")):
        with pytest.raises(
            SchemaMismatch, match=rf"{LATER}, which this shieldtx \(up to {HEAD}\).*install"
        ) as caught:
            refused()
        assert "db upgrade" not in str(caught.value)

    assert schema.current() == LATER


def test_check_of_other_shards_names_the_number_to_configure(engine: Engine) -> None:
    Schema(engine, shards=64).upgrade()

    with pytest.raises(SchemaMismatch, match="64 shards, not for 32: set SHIELDTX_SHARDS=64"):
        Schema(engine, shards=32).check()


def test_check_names_a_missing_table(engine: Engine) -> None:
    schema = Schema(engine)
    schema.upgrade()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE shield_shard"))

    with pytest.raises(SchemaMismatch, match="shield_shard is missing"):
        schema.check()
