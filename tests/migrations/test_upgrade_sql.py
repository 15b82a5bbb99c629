"""`db upgrade --sql`: psql makes the tables that `db upgrade` makes, or refuses the database."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, insert, select, text
from sqlalchemy.pool import NullPool

from shieldtx.embedded import EmbeddedPostgres
from shieldtx.errors import ConfigurationError
from shieldtx.store.migrations import Migrations
from shieldtx.store.schema import Schema
from shieldtx.store.tables import tables
from tests.support.catalog import catalog_of
from tests.support.psql import run_sql
from tests.support.revisions import EARLIER, HEAD, LATER

REVISIONS = EARLIER[::-1]
PARKED = "stock", "orders.commit", 0
"""The group, topic and partition of parked records."""


@pytest.fixture
def other(postgres: EmbeddedPostgres) -> Iterator[Engine]:
    """A second empty database."""
    name = "sql_of_an_upgrade"
    postgres.drop_database(name)
    postgres.create_database(name)
    engine = create_engine(postgres.url(name), poolclass=NullPool)
    yield engine
    postgres.drop_database(name)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def ok(script: str, engine: Engine, **options: Any) -> None:
    ended = run_sql(script, url_of(engine), **options)
    skipped = r".* NOTICE:  index .* does not exist, skipping\n"
    problems = re.sub(skipped, "", ended.stderr)
    assert (ended.returncode, problems, ended.stdout) == (0, "", "")


def contents(engine: Engine, schema: str | None = None) -> dict[str, Any]:
    """Return the catalog of the tables, and the rows that migrations write."""
    own = tables(schema)
    with engine.connect() as connection:
        shards = select(own.shard.c.shard, own.shard.c.epoch).order_by(own.shard.c.shard)
        comment = "SELECT obj_description(to_regnamespace(:name), 'pg_namespace')"
        return catalog_of(connection, schema or "public") | {
            "revision": Migrations(connection, schema).current(),
            "shards": connection.execute(shards).all(),
            "comment": connection.scalar(text(comment), {"name": schema or "pg_catalog"}),
        }


@pytest.mark.parametrize("schema", [None, "messages", "order"])
def test_sql_from_base_makes_the_same_tables(
    engine: Engine, other: Engine, schema: str | None
) -> None:
    printed = Schema(engine, schema=schema, shards=8)
    printed.upgrade()
    script = Schema(other, schema=schema, shards=8).upgrade_sql()

    ok(script, other)

    assert contents(other, schema) == contents(engine, schema)
    Schema(other, schema=schema, shards=8).check()
    # The marks of a schema of its own are the same too.
    Schema(other, schema=schema).downgrade("base")
    with other.connect() as connection:
        found = connection.scalar(text("SELECT count(*) FROM pg_class WHERE relname ~ '^shield'"))
        assert found == 0
        exists = "SELECT to_regnamespace(:name) IS NULL"
        assert schema is None or connection.scalar(text(exists), {"name": schema})


@pytest.mark.parametrize("revision", REVISIONS)
def test_sql_from_each_revision_makes_the_same_tables(
    engine: Engine, other: Engine, revision: str
) -> None:
    for each in (engine, other):
        Schema(each, shards=8).upgrade(revision)
    script = Schema(other, shards=8).upgrade_sql(start=revision, server_version=18)

    ok(script, other)

    Schema(engine).upgrade()
    assert contents(other) == contents(engine)
    Schema(other).check()


def test_sql_to_a_revision_in_between_makes_the_same_tables(engine: Engine, other: Engine) -> None:
    Schema(engine).upgrade("0004")
    ok(Schema(other).upgrade_sql("0004"), other)
    assert contents(other) == contents(engine)

    ok(Schema(other).upgrade_sql("0009", start="0004", server_version=18), other)
    Schema(engine).upgrade("0009")
    assert contents(other) == contents(engine)


def test_sql_of_a_later_release_makes_the_same_tables(
    engine: Engine, other: Engine, releases: Any
) -> None:
    for each in (engine, other):
        Schema(each).upgrade()
    releases.install("later")
    script = Schema(other).upgrade_sql(start=HEAD)
    assert "CREATE INDEX CONCURRENTLY" in script

    ok(script, other)
    Schema(engine).upgrade()

    assert Schema(other).current() == LATER
    assert contents(other) == contents(engine)


def test_sql_changes_rows_as_the_upgrade_does(
    engine: Engine, other: Engine, an_event: dict[str, Any]
) -> None:
    """Half messages get a check-back, and parked records get digests: revisions 0013 and 0014."""
    half = an_event | {"status": "HALF", "waiting": True}
    records = [
        (*PARKED, 1, None, None, "[]"),
        (*PARKED, 2, b"key", b"\x00\xffvalue", '[["a","\u00fc"]]'),
        (*PARKED, 3, b"", b"", ""),
    ]
    names = "consumer_group topic record_partition record_offset record_key record_value"
    columns = [*names.split(), "record_headers", "reason", "parked_at"]
    for each in (engine, other):
        Schema(each).upgrade("0012")
        with each.begin() as connection:
            outbox = tables().outbox
            connection.execute(insert(outbox).values({outbox.c[n]: v for n, v in half.items()}))
            places = ", ".join(f":{name}" for name in columns[:-1])
            connection.execute(
                text(f"INSERT INTO shield_parked ({', '.join(columns)}) VALUES ({places}, now())"),
                [dict(zip(columns[:-1], (*row, "why"), strict=True)) for row in records],
            )

    ok(Schema(other).upgrade_sql(start="0012"), other)
    Schema(engine).upgrade()

    def rows(engine: Engine) -> tuple[Any, Any]:
        parked, outbox = tables().parked, tables().outbox
        digests = select(parked.c.record_offset, parked.c.digest).order_by(parked.c.record_offset)
        halves = select(outbox.c.checks, outbox.c.check_at == outbox.c.created_at)
        with engine.connect() as connection:
            return connection.execute(digests).all(), connection.execute(halves).all()

    assert rows(other) == rows(engine)
    digests, halves = rows(other)
    assert len({digest for _, digest in digests}) == 3
    assert halves == [(0, True)]


def test_sql_deletes_a_record_that_was_parked_again(other: Engine) -> None:
    """The new release may park a record again before its digest of the former release exists."""
    Schema(other).upgrade("0014")
    parked = tables().parked
    row = dict(zip(("consumer_group", "topic", "record_partition"), PARKED, strict=True))
    row |= {"record_offset": 1, "reason": "", "record_headers": "[]", "parked_at": text("now()")}
    with other.begin() as connection:
        columns = {parked.c[name]: value for name, value in row.items()}
        connection.execute(insert(parked).values({**columns, parked.c.digest: "pending"}))
    ended = Schema(other).upgrade_sql("0014", start="0013")
    [change, deletion] = re.findall(r"(?m)^(?:UPDATE|DELETE FROM) shield_parked.*;$", ended)
    ok(change, other)
    with other.begin() as connection:
        made = connection.scalar(select(parked.c.digest))
        assert made != "pending"
        connection.execute(insert(parked).values({**columns, parked.c.digest: "pending"}))
    ok(change + deletion, other)
    with other.connect() as connection:
        assert connection.scalars(select(parked.c.digest)).all() == [made]


def refused(script: str, engine: Engine, message: str) -> None:
    """Run a script that ends with an error, and that changes nothing."""
    before = contents(engine) if Schema(engine).current() else None
    ended = run_sql(script, url_of(engine))
    assert ended.returncode == 3
    assert message in ended.stderr
    assert before is None or contents(engine) == before


def test_sql_from_base_refuses_existing_tables(engine: Engine) -> None:
    Schema(engine).upgrade("0012")
    refused(Schema(engine).upgrade_sql(), engine, "the tables exist already, at revision 0012")


def test_sql_refuses_tables_at_another_revision(engine: Engine) -> None:
    script = Schema(engine).upgrade_sql(start="0012")
    refused(script, engine, "there are no tables of shieldtx here")
    Schema(engine).upgrade("0014")
    refused(script, engine, "the tables are at revision 0014, not at 0012")

    Schema(engine).downgrade("0012")
    ok(script, engine)
    refused(script, engine, f"the tables are at revision {HEAD}, not at 0012")


def test_sql_in_a_client_that_goes_on_changes_nothing(engine: Engine) -> None:
    """Every transaction refuses by itself."""
    Schema(engine).upgrade()
    before = contents(engine)
    for script in (Schema(engine).upgrade_sql(), Schema(engine).upgrade_sql(start="0012")):
        run_sql(script, url_of(engine), goes_on=True)
        assert contents(engine) == before


def test_sql_refuses_another_number_of_shards(engine: Engine) -> None:
    Schema(engine, shards=8).upgrade("0012")
    script = Schema(engine, shards=16).upgrade_sql(start="0012")
    refused(script, engine, "the tables were made for 8 shards, not for 16")


def test_sql_refuses_events_outside_of_the_shards(engine: Engine, an_event: dict[str, Any]) -> None:
    outbox = tables().outbox
    Schema(engine, shards=8).upgrade("0006")
    with engine.begin() as connection:
        row = an_event | {"shard": 9}
        connection.execute(insert(outbox).values({outbox.c[n]: v for n, v in row.items()}))
    ok(Schema(engine).upgrade_sql("0007", start="0006"), engine)
    script = Schema(engine).upgrade_sql(start="0007")
    refused(script, engine, "the outbox contains events outside of its shards")

    Schema(engine).upgrade("0008")
    ok(Schema(engine).upgrade_sql(start="0008"), engine)


@pytest.mark.parametrize("schema", [None, "messages"])
def test_sql_refuses_to_run_during_another_migration(engine: Engine, schema: str | None) -> None:
    script = Schema(engine, schema=schema).upgrade_sql()
    with migrating(engine, schema):
        refused(script, engine, "another migration of these tables is running")
    ok(script, engine)


@contextmanager
def migrating(engine: Engine, schema: str | None) -> Iterator[Connection]:
    with engine.begin() as connection:
        Migrations(connection, schema).begin()
        yield connection


def test_sql_gives_up_a_lock_that_a_reader_holds(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers would queue after the upgrade; the next run starts where this one ended."""
    monkeypatch.setattr("shieldtx.store.offline.LOCK_WAIT", timedelta(milliseconds=200))
    Schema(engine).upgrade("0014")
    script = Schema(engine).upgrade_sql("0015", start="0014")
    with engine.begin() as reader:
        reader.execute(select(tables().inbox.c.event_id))
        refused(script, engine, "canceling statement due to lock timeout")
    ok(script, engine)
    assert Schema(engine).current() == "0015"


def test_sql_for_another_server_version_is_refused(engine: Engine) -> None:
    refused(Schema(engine).upgrade_sql(server_version=15), engine, "is for PostgreSQL 15")


def test_sql_that_depends_on_the_server_needs_its_version(engine: Engine) -> None:
    schema = Schema(engine)
    with pytest.raises(ConfigurationError, match="with --server-version"):
        schema.upgrade_sql(start="0003")
    assert "brin" not in schema.upgrade_sql(start="0003", server_version=15)
    assert "brin" not in schema.upgrade_sql(server_version=15)
    assert "CONCURRENTLY shield_outbox_settled_idx ON shield_outbox USING brin" in (
        schema.upgrade_sql(start="0003", server_version=16)
    )


@pytest.mark.parametrize(
    ("start", "target", "message"),
    [
        ("base", "9999", "there is no revision 9999"),
        ("9999", "head", "there is no revision 9999"),
        (HEAD, "head", f"revision head is not above {HEAD}: there is nothing"),
        ("0012", "0003", "revision 0003 is not above 0012"),
        ("head", "base", "nothing to do"),
        ("", "head", "there is no revision"),
    ],
)
def test_sql_between_unsuitable_revisions_is_refused(
    engine: Engine, start: str, target: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Schema(engine).upgrade_sql(target, start=start)


def test_sql_needs_no_connection() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    assert "CREATE TABLE shield_outbox" in Schema(engine).upgrade_sql()


def test_sql_needs_the_documented_privileges_only(engine: Engine, other: Engine) -> None:
    with other.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS shop_dba"))
        connection.execute(text("CREATE ROLE shop_dba"))
        connection.execute(text(f"GRANT CREATE ON DATABASE {other.url.database} TO shop_dba"))
    try:
        ok(Schema(other, schema="messages").upgrade_sql(), other, as_user="shop_dba")
        Schema(engine, schema="messages").upgrade()
        assert contents(other, "messages") == contents(engine, "messages")
    finally:
        with other.begin() as connection:
            connection.execute(text("DROP OWNED BY shop_dba"))
            connection.execute(text("DROP ROLE shop_dba"))
