"""`shieldtx reconcile`: what it takes, what it refuses, and one run on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from shieldtx.embedded.jars import fetch_jdbc_driver
from shieldtx.reconcile.findings import Outcome
from tests.acceptance.conftest import Service, Shop
from tests.folders import assert_free_of

URL = "postgresql+psycopg://ann:s3cret-word@127.0.0.1:5432/orders"


def test_a_lost_event_is_found_and_the_exit_status_says_so(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    shop.place(range(6), note="payload nobody reads")
    shop.orders.ok("relay", "--once")
    shop.stock.ok("consume", shop.stock.environment["SHOP_STOCK_GROUP"], "--once")
    shop.stock.execute("DELETE FROM shield_inbox WHERE key = 'k3'")

    result = shop.orders.run(
        "reconcile",
        *("--upstream", "orders=ORDERS_URL", "--downstream", "stock=STOCK_URL"),
        *("--margin", "0", "--out", str(tmp_path / "report"), "--json"),
        app=False,
        ORDERS_URL=shop.orders.url,
        STOCK_URL=shop.stock.url,
        SHIELDTX_JDBC_JAR=str(fetch_jdbc_driver()),
    )

    assert result.status == Outcome.MISMATCHES, result.err
    assert result.data["outcome"] == "MISMATCHES"
    assert result.data["exit_status"] == 1
    assert result.data["totals"] == {"MATCHED": 5, "MISSING_DOWNSTREAM": 1}
    (pair,) = result.data["pairs"]
    assert (pair["upstream"], pair["downstream"]) == ("orders", "stock")
    assert pair["group"] == shop.stock.environment["SHOP_STOCK_GROUP"]
    paths = [Path(result.data[name]) for name in ("report", "rows", "summary", "findings", "log")]
    assert set(paths) == set((tmp_path / "report").iterdir())
    assert_free_of(tmp_path / "report", password_of(shop.orders), "payload nobody reads")


def password_of(service: Service) -> str:
    password = make_url(service.url).password
    assert password
    return password


def test_a_run_that_breaks_off_has_a_status_of_its_own_and_says_why_without_the_password(
    shop: Shop, tmp_path: Path
) -> None:
    findings = tmp_path / "report" / "summary.json"
    findings.parent.mkdir()
    findings.write_text("left by an earlier run")
    wrong = make_url(shop.stock.url).set(password="wr0ng-pa55word")

    result = shop.orders.run(
        "reconcile",
        *("--upstream", "orders=ORDERS_URL", "--downstream", "stock=STOCK_URL"),
        *("--out", str(tmp_path / "report")),
        ORDERS_URL=shop.orders.url,
        STOCK_URL=wrong.render_as_string(hide_password=False),
        SHIELDTX_JDBC_JAR=str(fetch_jdbc_driver()),
    )

    assert result.status == Outcome.ERROR
    last_line = result.err.splitlines()[-1]
    assert "password authentication failed" in last_line
    assert "in the database of service stock" in last_line
    assert not findings.exists()
    for secret in (password_of(shop.orders), "wr0ng-pa55word"):
        assert secret not in result.out + result.err
        assert_free_of(findings.parent, secret)
    assert "outcome" in result.out
    assert "ERROR" in result.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--upstream", f"orders={URL}"], "--upstream: write it as NAME=VARIABLE"),
        (["--upstream", URL], "--upstream: write it as NAME=VARIABLE"),
        (["--upstream", "orders=NOT_SET"], "the environment variable NOT_SET is not set"),
        (["--upstream", "orders=BROKEN"], "BROKEN does not hold a database URL"),
        (["--margin", "soon"], "--margin: 'soon' is no duration"),
        (["--upstream-retention", "a week"], "--upstream-retention: 'a week' is no duration"),
    ],
)
def test_what_cannot_be_understood_is_one_line_without_passwords(
    words: list[str], problem: str, shop: Shop, tmp_path: Path
) -> None:
    result = shop.orders.run(
        "reconcile",
        *("--upstream", "orders=GOOD", "--downstream", "stock=GOOD"),
        *words,
        *("--out", str(tmp_path)),
        GOOD=URL,
        BROKEN="s3cret-word",
    )

    assert (result.status, result.out) == (Outcome.ERROR, "")
    assert result.err.startswith("error: ")
    assert problem in result.err
    assert result.err.count("\n") == 1
    assert "s3cret-word" not in result.err
