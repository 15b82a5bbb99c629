"""A host's autogenerate ignores the tables of shieldtx without a line in its env.py."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, Text, create_engine, text

from shieldtx.store.schema import Schema, include_name
from shieldtx.store.tables import tables
from tests.support.alembic_project import AlembicProject

NAME = "alembic.autogenerate.shieldtx"
WITHOUT_PLUGIN = ["alembic.autogenerate.*", f"~{NAME}"]
NOTHING_TO_DO = "No new upgrade operations detected"

UPGRADE_WITH = """
from alembic import op
from shieldtx.store.schema import downgrade_with, upgrade_with

def upgrade():
    upgrade_with(op.get_bind(), schema="messages")

def downgrade():
    downgrade_with(op.get_bind(), schema="messages")
"""

SIMILAR_NAMES = """
Table("shield_outbox_notes", metadata, Column("id", Integer, primary_key=True))
Table("shield", metadata, Column("id", Integer, primary_key=True))
"""


def operations(revision: str) -> list[tuple[str, str]]:
    """Return the operations of a function in a revision, and the names of their objects."""
    return sorted(re.findall(r"op\.(\w\w+)\((?:op\.f\()?'(\w+)'", revision))


@pytest.mark.parametrize("template", ["generic", "async", "pyproject", "sqlite"])
def test_host_project_never_touches_the_tables(
    template: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing in the host's project imports shieldtx: `shieldtx db upgrade` makes the tables."""
    if template == "sqlite":
        url, template = f"sqlite:///{tmp_path}/host.db", "generic"
    else:
        url = request.getfixturevalue("database_url")
    host = AlembicProject(tmp_path / "host", url, template=template)
    assert ("create_table", "orders") in operations(host.autogenerate())
    host.ok("upgrade", "head")
    engine = create_engine(url)
    Schema(engine).upgrade()

    assert NOTHING_TO_DO in host.ok("check")

    # The host's own tables are compared as before, also those whose names begin alike.
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE shield_orders (id integer PRIMARY KEY)"))
        connection.execute(text("CREATE INDEX shield_outbox_mine ON orders (id)"))
    engine.dispose()
    host.add_model(SIMILAR_NAMES)
    assert host.run("check").returncode != 0
    upgrade, _, downgrade = host.autogenerate().partition("def downgrade()")
    assert operations(upgrade) == [
        ("create_table", "shield"),
        ("create_table", "shield_outbox_notes"),
        ("drop_index", "shield_outbox_mine"),
        ("drop_table", "shield_orders"),
    ]
    assert operations(downgrade) == [
        ("create_index", "shield_outbox_mine"),
        ("create_table", "shield_orders"),
        ("drop_table", "shield"),
        ("drop_table", "shield_outbox_notes"),
    ]
    host.ok("upgrade", "head")
    assert NOTHING_TO_DO in host.ok("check")


@pytest.mark.parametrize("template", ["generic", "async"])
def test_host_project_with_schemas_never_touches_the_tables(
    template: str, tmp_path: Path, database_url: str
) -> None:
    host = AlembicProject(tmp_path / "host", database_url, template=template)
    host.configure("include_schemas=True")
    host.add_revision("host_1", None, UPGRADE_WITH)
    host.ok("upgrade", "head")

    upgrade, _, downgrade = host.autogenerate().partition("def downgrade()")

    assert operations(upgrade) == [("create_index", "ix_orders_note"), ("create_table", "orders")]
    assert operations(downgrade) == [("drop_index", "ix_orders_note"), ("drop_table", "orders")]
    host.ok("upgrade", "head")
    assert NOTHING_TO_DO in host.ok("check")


@pytest.fixture(params=["postgresql", "sqlite"])
def any_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path}/host.db")
    else:
        engine = create_engine(request.getfixturevalue("database_url"))
    yield engine
    engine.dispose()


def differences(engine: Engine, metadata: MetaData, **options: Any) -> list[tuple[str, str]]:
    """Return what autogenerate would do to which tables."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    return sorted((name, item.name) for name, item, *_ in found if name.endswith("_table"))


def test_env_py_can_exclude_the_plugin(any_engine: Engine) -> None:
    Schema(any_engine).upgrade()
    assert differences(any_engine, MetaData()) == []

    dropped = differences(any_engine, MetaData(), autogenerate_plugins=WITHOUT_PLUGIN)

    assert ("remove_table", "shield_outbox") in dropped
    assert ("remove_table", "shield_version") in dropped


def test_tables_of_an_older_release_are_ignored(any_engine: Engine) -> None:
    Schema(any_engine).upgrade("0003")
    assert differences(any_engine, MetaData()) == []


@pytest.mark.parametrize("schema", [None, "messages"])
def test_tables_in_the_host_metadata_are_ignored(engine: Engine, schema: str | None) -> None:
    """Also before they exist: autogenerate creates no tables without a version table."""
    metadata = MetaData()
    tables(schema, metadata)
    for revision in ("base", "0003", "head"):
        if revision != "base":
            Schema(engine, schema=schema).upgrade(revision)
        assert differences(engine, metadata, include_schemas=True) == []
        assert differences(engine, metadata) == []


def test_model_of_the_host_on_a_table_is_ignored(engine: Engine) -> None:
    Schema(engine).upgrade()
    metadata = MetaData()
    Table("shield_outbox", metadata, Column("seq", Integer, primary_key=True), schema="public")
    Table("shield_inbox", metadata, Column("note", Text))

    assert differences(engine, metadata, include_schemas=True) == []


def test_include_name_of_shieldtx_compares_the_host_metadata(engine: Engine) -> None:
    metadata = MetaData()
    tables(None, metadata)
    assert ("add_table", "shield_outbox") in differences(
        engine, metadata, include_name=include_name
    )


def test_host_table_of_the_same_name_elsewhere_is_compared(engine: Engine) -> None:
    """Also where the search_path leads to the schema of shieldtx."""
    Schema(engine, schema="messages").upgrade()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE shield_audit (id integer PRIMARY KEY)"))
        connection.execute(text("CREATE SCHEMA other"))
        connection.execute(text("CREATE TABLE other.shield_trace (id integer PRIMARY KEY)"))
        database = engine.url.database
        connection.execute(text(f"ALTER DATABASE {database} SET search_path = public, messages"))
    engine.dispose()

    assert differences(engine, MetaData(), include_schemas=True) == [
        ("remove_table", "shield_audit"),
        ("remove_table", "shield_trace"),
    ]
    assert differences(engine, MetaData()) == [("remove_table", "shield_audit")]


def test_filters_of_the_host_stay_in_force(engine: Engine) -> None:
    Schema(engine).upgrade()
    with engine.begin() as connection:
        for name in ("by_name", "by_object", "neither"):
            connection.execute(text(f"CREATE TABLE {name} (id integer PRIMARY KEY)"))

    found = differences(
        engine,
        MetaData(),
        include_name=lambda name, *_: name != "by_name",
        include_object=lambda _, name, *__: name != "by_object",
    )

    assert found == [("remove_table", "neither")]


def test_entry_point_suits_all_releases_of_alembic() -> None:
    """Before 1.20.1, Alembic iterates over the module that an entry point names."""
    [point] = entry_points(group="alembic.plugins", name=NAME)
    found = point.load()
    assert isinstance(found, ModuleType)
    assert list(found) == [found]
    assert callable(found.setup)


@pytest.mark.parametrize(
    "first",
    ["alembic", "alembic.autogenerate", "shieldtx.store.autogenerate", "shieldtx.store.schema"],
)
def test_import_in_any_order_registers_the_plugin(first: str) -> None:
    code = (
        f"import sys, {first}\n"
        "import alembic\n"
        "from alembic.runtime import plugins\n"
        f"assert {NAME!r} in plugins._all_plugins\n"
    )
    if first.startswith("alembic"):
        # Alembic's users pay for no part of shieldtx that they do not use.
        code += (
            "found = {name for name in sys.modules if name.partition('.')[0] == 'shieldtx'}\n"
            "assert found == {'shieldtx', 'shieldtx.store', 'shieldtx.store.autogenerate'}, found\n"
        )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
