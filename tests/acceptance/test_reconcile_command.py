"""`shieldtx reconcile`: its options, its refusals, and one run on Spark."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.findings import RunOutcome
from shieldtx.store.schema import Schema
from tests.acceptance.conftest import Service, Shop
from tests.support.folders import assert_free_of

URL = "postgresql+psycopg://ann:s3cret-word@127.0.0.1:5432/orders"


def test_lost_event_is_found_and_sets_the_exit_status(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    shop.place(range(6), note="payload nobody reads")
    shop.orders.ok("relay", "--once")
    shop.stock.ok("consume", shop.stock.environment["SHOP_STOCK_GROUP"], "--once")
    shop.stock.execute("DELETE FROM shield_inbox WHERE key = 'k3'")

    result = shop.orders.run(
        "reconcile",
        *("--config", str(config(tmp_path, shop))),
        *("--margin", "0", "--out", str(tmp_path / "report"), "--json"),
        app=False,
        ORDERS_URL=shop.orders.url,
        STOCK_URL=shop.stock.url,
        SHIELDTX_JDBC_JAR=str(fetch_jdbc_driver()),
    )

    assert result.status == RunOutcome.MISMATCHES, result.err
    assert result.data["outcome"] == "MISMATCHES"
    assert result.data["exit_status"] == 1
    assert result.data["totals"] == {"MATCHED": 5, "MISSING_DOWNSTREAM": 1, "ON_TOPIC": 6}
    topic, pair = result.data["pairs"]
    assert (topic["upstream"], topic["downstream"]) == ("orders", "(topics)")
    assert (pair["upstream"], pair["downstream"]) == ("orders", "stock")
    assert pair["group"] == shop.stock.environment["SHOP_STOCK_GROUP"]
    paths = [Path(result.data[name]) for name in ("report", "rows", "summary", "findings", "log")]
    assert set(paths) == set((tmp_path / "report").iterdir())
    assert stat.S_IMODE((tmp_path / "report").stat().st_mode) & stat.S_IRWXO == 0
    assert_free_of(tmp_path / "report", password_of(shop.orders), "payload nobody reads")


def password_of(service: Service) -> str:
    password = make_url(service.url).password
    assert password
    return password


def config(folder: Path, shop: Shop) -> Path:
    path = folder / "reconcile.toml"
    path.write_text(
        f"""
        margin = "PT5M"

        [topics]
        bootstrap = "{shop.kafka.bootstrap}"
        prefix = "{shop.prefix}"

        [services.orders]
        url = "ORDERS_URL"
        retention = "P7D"

        [services.stock]
        url = "STOCK_URL"
        """
    )
    return path


def test_aborted_run_has_its_own_status_and_shows_no_password(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    wrong = make_url(shop.stock.url).set(password="wr0ng-pa55word")

    result = shop.orders.run(
        "reconcile",
        *("--config", str(config(tmp_path, shop)), "--out", str(tmp_path / "report")),
        ORDERS_URL=shop.orders.url,
        STOCK_URL=wrong.render_as_string(hide_password=False),
        SHIELDTX_JDBC_JAR=str(fetch_jdbc_driver()),
    )

    assert (result.status, result.out) == (RunOutcome.ERROR, "")
    assert "service stock: " in result.err
    assert "password authentication failed" in result.err
    for secret in (password_of(shop.orders), "wr0ng-pa55word"):
        assert secret not in result.err
    listed = shop.orders.run(
        *("reconcile", "runs", "--config", str(config(tmp_path, shop)), "--json"),
        ORDERS_URL=shop.orders.url,
        STOCK_URL=shop.stock.url,
    )
    (stored,) = json.loads(listed.out)
    assert stored["outcome"] == "ERROR"
    assert "password authentication failed" in stored["problem"]


def test_tables_of_another_version_are_refused_before_comparison(
    shop: Shop, tmp_path: Path
) -> None:
    shop.migrate()
    engine = create_engine(shop.stock.url)
    Schema(engine).downgrade("0001")
    engine.dispose()

    result = shop.orders.run(
        "reconcile",
        *("--config", str(config(tmp_path, shop)), "--out", str(tmp_path / "report")),
        ORDERS_URL=shop.orders.url,
        STOCK_URL=shop.stock.url,
    )

    assert result.status == RunOutcome.ERROR
    assert "service stock: the tables are at revision 0001" in result.err
    assert "shieldtx db upgrade" in result.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'[services.orders]\nurl = "{URL}"', "services.orders.url: write the name of the env"),
        ('[services.orders]\nurl = "NOT_SET"', "the environment variable NOT_SET is not set"),
        ('[services.orders]\nurl = "BROKEN"', "BROKEN does not hold a database URL"),
        ('[services.orders]\nurl = "GOOD"\nretention = "a week"', "services.orders.retention"),
        ('[services.orders]\nurl = "GOOD"\ncolour = "red"', "colour: there is no such key"),
        ('margin = "soon"', "margin: "),
        ("services = {}", "services: "),
        ("this is not TOML", "is not TOML"),
    ],
)
def test_invalid_arguments_are_one_line_without_passwords(
    text: str, problem: str, shop: Shop, tmp_path: Path
) -> None:
    path = tmp_path / "reconcile.toml"
    path.write_text(text)
    result = shop.orders.run(
        "reconcile",
        *("--config", str(path), "--out", str(tmp_path)),
        GOOD=URL,
        BROKEN="s3cret-word",
    )

    assert (result.status, result.out) == (RunOutcome.ERROR, "")
    assert result.err.startswith("error: ")
    assert problem in result.err
    assert result.err.count("\n") == 1
    assert "s3cret-word" not in result.err
