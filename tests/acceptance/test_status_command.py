"""`shieldtx status`."""

from __future__ import annotations

from typing import Any

from tests.acceptance.conftest import Shop
from tests.conftest import Eventually


def rows(backlog: dict[str, Any]) -> dict[str, int]:
    """Return the states that have rows."""
    return {s: count["rows"] for s, count in backlog["states"].items() if count["rows"]}


def test_json_status_has_the_documented_keys(shop: Shop) -> None:
    shop.orders.ok("db", "upgrade")

    data = shop.orders.ok("status", "--json").data

    assert list(data) == [
        "source",
        "at",
        "outbox",
        "inbox",
        "relays",
        "shards",
        "at_limit",
        "unhandled",
        "paused",
    ]
    assert data["source"] == "orders"
    assert data["at_limit"] == {"topics": [], "partitions": []}
    assert data["unhandled"] == []
    assert data["paused"] == []
    assert data["shards"] == {"all": 64, "held": 0}
    common = ["states", "retrying", "delayed", "oldest_pending_seconds"]
    half = ["oldest_half_seconds", "oldest_unresolved_seconds"]
    assert list(data["outbox"]) == [*common, *half, "topics", "other_sources"]
    assert list(data["inbox"]) == [*common, "groups"]
    assert data["outbox"]["states"]["FAILED"] == {"rows": 0, "precision": "exact"}
    assert set(data["inbox"]["states"]) == {
        "INIT",
        "PROCESSING",
        "PROCESSED",
        "MAX_RECONSUMED",
        "DEAD",
        "DISCARDED",
        "FENCED",
    }


def test_status_follows_events_through_both_services(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.place(range(5))

    waiting = shop.orders.ok("status", "--json").data
    assert rows(waiting["outbox"]) == {"INIT": 5}
    (topic,) = waiting["outbox"]["topics"]
    assert (topic["topic"], topic["kind"]) == ("orders.placed", "COMMIT")
    assert topic["oldest_pending_seconds"] > 0

    shop.orders.start("relay")
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 5}, "published")
    sent = shop.orders.ok("status", "--json").data
    assert rows(sent["outbox"]) == {"PROCESSED": 5}
    assert sent["outbox"]["oldest_pending_seconds"] is None
    (relay,) = sent["relays"]
    assert relay["shards"] == sent["shards"]["held"] == 64

    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    shop.stock.ok("consume", group, "--once")
    (received,) = shop.stock.ok("status", "--json").data["inbox"]["groups"]
    assert received["group"] == group
    assert rows(received) == {"PROCESSED": 5}
    assert received["parked"] == {"rows": 0, "precision": "exact"}


def test_text_status_is_tables_without_passwords(shop: Shop) -> None:
    shop.migrate()
    shop.place(range(3))

    told = shop.orders.run("status", app=False).out

    assert "orders.placed COMMIT" in told
    password = shop.orders.url.partition("@")[0].rpartition(":")[2]
    assert password not in told
    headings, line = [
        line.split()
        for line in told.splitlines()
        if line.split()[:1] in (["topic"], ["orders.placed"])
    ]
    assert headings[1:5] == ["INIT", "PROCESSING", "PROCESSED", "FAILED"]
    assert line[2:6] == ["3", "0", "0", "0"]
    assert "DISCARDED" not in told


def test_status_refuses_missing_tables(shop: Shop) -> None:
    result = shop.orders.run("status", "--json")

    assert (result.status, result.out) == (2, "")
    assert result.err == "error: the tables do not exist yet: run `shieldtx db upgrade`\n"
