"""`shieldtx db`: upgrade, its SQL, downgrade, current, check."""

from __future__ import annotations

from shieldtx.embedded.free_ports import free_port
from tests.acceptance.conftest import Shop
from tests.support.psql import run_sql


def test_upgrade_creates_tables_once_and_check_accepts_them(shop: Shop) -> None:
    orders = shop.orders
    assert orders.ok("db", "current", "--json").data == {"revision": None}
    assert orders.ok("db", "current").out == "none: there are no tables yet\n"
    assert orders.run("db", "check").err == (
        "error: the tables do not exist yet: run `shieldtx db upgrade`\n"
    )

    made = orders.ok("db", "upgrade", "--json").data
    assert made["before"] is None
    revision = made["revision"]

    assert orders.ok("db", "upgrade").out == f"the tables are at revision {revision} already\n"
    assert orders.ok("db", "current").out == f"{revision}\n"
    assert orders.ok("db", "check", "--json").data == {"revision": revision, "fits": True}
    assert orders.outbox() == {}


def test_db_commands_need_no_application(shop: Shop) -> None:
    for words in (["upgrade"], ["current"], ["check"]):
        assert shop.orders.run("db", *words, app=False).status == 0


def test_upgrade_creates_its_own_schema(shop: Shop) -> None:
    shop.orders.ok("db", "upgrade", SHIELDTX_DATABASE_SCHEMA="shield")
    shop.orders.ok("db", "check", SHIELDTX_DATABASE_SCHEMA="shield")

    assert shop.orders.run("db", "check").status == 2
    assert shop.orders.one("SELECT count(*) FROM shield.shield_outbox") == 0


def test_check_refuses_newer_tables_and_other_settings(shop: Shop) -> None:
    shop.orders.ok("db", "upgrade")
    result = shop.orders.run("db", "check", SHIELDTX_SHARDS="8")
    assert (result.status, result.out) == (2, "")
    assert "made for 64 shards, not for 8" in result.err

    shop.orders.execute("UPDATE shield_version SET version_num = '9999'")
    for words in (["db", "check"], ["db", "upgrade"], ["relay"], ["status"]):
        result = shop.orders.run(*words)
        assert result.status == 2, words
        assert "revision 9999, which this shieldtx" in result.err


def test_printed_sql_creates_what_the_commands_accept(shop: Shop) -> None:
    settings = {"SHIELDTX_DATABASE_SCHEMA": "shield", "SHIELDTX_SHARDS": "8"}
    script = shop.orders.ok("db", "upgrade", "--sql", **settings).out

    assert run_sql(script, shop.orders.url).returncode == 0

    assert shop.orders.ok("db", "check", **settings).out.startswith("the tables fit (revision 0")
    refused = run_sql(script, shop.orders.url)
    assert "the tables exist already, at revision 0" in refused.stderr


def test_downgrade_asks_and_takes_the_tables_back(shop: Shop) -> None:
    orders = shop.orders
    revision = orders.ok("db", "upgrade", "--json").data["revision"]

    refused = orders.run("db", "downgrade", "0015")
    assert (refused.status, refused.out) == (1, "")
    assert "Take the tables back from" in refused.err

    assert orders.ok("db", "downgrade", "0015", "--yes").out == (
        f"the tables are at revision 0015 now (before: {revision})\n"
    )
    assert orders.run("db", "check").status == 2
    assert orders.ok("db", "downgrade", "base", "--yes", "--json").data == {
        "before": "0015",
        "revision": None,
        "lost": {},
    }
    assert orders.ok("db", "current").out == "none: there are no tables yet\n"


def test_unknown_revision_is_refused_with_one_line(shop: Shop) -> None:
    result = shop.orders.run("db", "upgrade", "nonsense")

    assert result.status == 2
    assert result.err.startswith("error: there is no revision nonsense (newest: 0")
    assert result.err.count("\n") == 1


def test_unreachable_database_is_one_line(shop: Shop) -> None:
    url = f"postgresql+psycopg://ann:s3cret-word@127.0.0.1:{free_port()}/orders"
    for words in (["db", "upgrade"], ["status"], ["relay"], ["dead", "list"]):
        result = shop.orders.run(*words, SHIELDTX_DATABASE_URL=url)
        assert result.status == 1, words
        assert result.out == ""
        assert result.err.startswith("error: SHIELDTX_DATABASE_URL (ann@127.0.0.1:")
        assert "/orders): the database cannot be used: connection " in result.err
        assert result.err.count("\n") == 1
        assert "s3cret-word" not in result.err


def test_debug_traceback_of_a_database_error_has_no_password(shop: Shop) -> None:
    url = f"postgresql+psycopg://ann:s3cret-word@127.0.0.1:{free_port()}/orders"

    result = shop.orders.run("db", "current", "--log-level", "debug", SHIELDTX_DATABASE_URL=url)

    assert "Traceback (most recent call last)" in result.err
    last = result.err.splitlines()[-1]
    assert last.startswith("error: SHIELDTX_DATABASE_URL (ann@127.0.0.1:")
    assert "/orders): the database cannot be used: " in last
    assert "s3cret-word" not in result.err


def test_wrong_password_and_missing_database_are_one_line(shop: Shop) -> None:
    right = shop.orders.url
    wrong = right.replace("//postgres:", "//postgres:wrong")
    assert wrong != right
    for url in (wrong, f"{right}_missing"):
        result = shop.orders.run("db", "current", SHIELDTX_DATABASE_URL=url)
        assert result.status == 1
        assert result.err.startswith("error: SHIELDTX_DATABASE_URL (postgres@")
        assert "): the database cannot be used: " in result.err
        assert result.err.count("\n") == 1


def test_database_without_a_driver_is_one_line(shop: Shop) -> None:
    result = shop.orders.run("db", "current", SHIELDTX_DATABASE_URL="oracle+nothing://x/y")

    assert result.status == 2
    assert result.err.startswith("error: SHIELDTX_DATABASE_URL: ")
    assert result.err.count("\n") == 1
