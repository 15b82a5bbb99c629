"""`shieldtx trace`: the traces of the workers, read by the command of either service."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import make_url

from tests.acceptance.conftest import Shop, status_of
from tests.conftest import Eventually

SECRET = "four-digits-and-a-name"
TRACED = {"SHIELDTX_TRACE": "true"}


def refuse_an_order(shop: Shop, **environment: str) -> str:
    """Have an order refused and cancelled; return the id of its event."""
    shop.place([7], quantity=1000, note=SECRET)
    shop.orders.ok("relay", "--once", **environment)
    shop.stock.ok("consume", shop.stock.environment["SHOP_STOCK_GROUP"], "--once", **environment)
    shop.stock.ok("relay", "--once", **environment)
    shop.orders.ok("consume", shop.orders.environment["SHOP_ORDERS_GROUP"], "--once", **environment)
    return str(shop.orders.one("SELECT event_id FROM shield_outbox"))


def config(folder: Path) -> Path:
    path = folder / "reconcile.toml"
    path.write_text('[services.orders]\nurl = "ORDERS_URL"\n[services.stock]\nurl = "STOCK_URL"\n')
    return path


def steps(hop: dict[str, Any]) -> list[str]:
    return [step["what"] for step in hop["steps"]]


def test_timeline_of_a_refused_order_shows_all_attempts(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    event_id = refuse_an_order(shop, **TRACED)
    urls = {"ORDERS_URL": shop.orders.url, "STOCK_URL": shop.stock.url}

    words = ("trace", event_id, "--config", str(config(tmp_path)))
    result = shop.orders.run(*words, "--json", app=False, **urls)

    assert result.status == 0, result
    written, received = result.data["hops"]
    assert steps(written) == ["WRITTEN", "CLAIMED", "PUBLISHED", "PROCESSED"]
    assert steps(received) == ["RECEIVED", "STARTED", "REFUSED"]
    assert received["steps"][2]["reason"] == "Refused: only 100 in stock"
    assert written["steps"][2]["offset"] == received["steps"][0]["offset"] == 0
    [back] = received["caused"]
    assert [steps(hop) for hop in back["hops"]] == [
        ["WRITTEN", "CLAIMED", "PUBLISHED", "PROCESSED"],
        ["RECEIVED", "STARTED", "COMPENSATED"],
    ]
    text = shop.orders.run(*words, app=False, **urls)
    assert text.status == 0
    assert "given up, rollback written, attempt 1" in text.out
    for said in (text.out, text.err, result.out, result.err):
        assert SECRET not in said
        assert (make_url(shop.orders.url).password or "-") not in said


def test_stopped_workers_write_their_trace_completely(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    relay = shop.orders.start("relay", **TRACED)
    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    consumer = shop.stock.start("consume", group, **TRACED)
    shop.place(range(50))
    eventually(lambda: len(shop.reserved()) == 50, "all have their effect", within=30)
    for worker in (relay, consumer):
        worker.send_signal(signal.SIGTERM)
        assert status_of(worker) == 0

    traced = "SELECT count(DISTINCT event_id) FROM shield_trace WHERE outcome = :outcome"
    assert shop.orders.one(traced, outcome="ACKNOWLEDGED") == 50
    assert shop.stock.one(traced, outcome="APPLIED") == 50


def test_timeline_without_a_trace_comes_from_the_tables(shop: Shop) -> None:
    shop.migrate()
    event_id = refuse_an_order(shop)

    result = shop.stock.run("trace", event_id, "--json", app=False)

    assert result.status == 0, result
    [received] = result.data["hops"]
    assert (received["service"], received["status"]) == ("stock", "MAX_RECONSUMED")
    assert steps(received) == ["RECEIVED", "MAX_RECONSUMED"]
    assert "SHIELDTX_TRACE is not set there" in received["unknown"][0]
    assert "orders has written it" in result.data["unknown"][0]
    assert shop.stock.one("SELECT count(*) FROM shield_trace") == 0


def test_unknown_event_is_one_line(shop: Shop, tmp_path: Path) -> None:
    shop.migrate()
    unknown, path = str(uuid4()), config(tmp_path)
    unset = "services.orders.url: the environment variable ORDERS_URL is not set"
    for words, said in (
        (("trace", "4711"), "error: '4711' is not an event id; they look like 0193"),
        (("trace", unknown), f"error: there is no event {unknown} in the database of orders\n"),
        (("trace", unknown, "--config", str(path)), f"error: {path}: {unset}\n"),
    ):
        result = shop.orders.run(*words, app=False)
        assert (result.status, result.out) == (2, ""), result
        assert said in result.err
