"""`shieldtx topics`: create, list."""

from __future__ import annotations

from shieldtx.embedded.free_ports import free_port
from tests.acceptance.conftest import Shop


def test_missing_topics_are_created_and_all_are_listed(shop: Shop) -> None:
    names = [f"{shop.prefix}orders.placed.{kind}" for kind in ("commit", "rollback")]
    absent = {"exists": False, "created": False, "partitions": None, "replication": None}
    there = {"exists": True, "created": False, "partitions": 2, "replication": 1}

    assert shop.orders.ok("topics", "list", "--json").data == [{"topic": n} | absent for n in names]
    assert shop.orders.ok("topics", "create", "--json").data == [
        {"topic": n} | there | {"created": True} for n in names
    ]
    # Another number of partitions leaves existing topics unchanged.
    again = shop.orders.ok("topics", "create", "--json", SHIELDTX_TOPIC_PARTITIONS="3").data
    assert again == [{"topic": n} | there for n in names]
    assert shop.stock.ok("topics", "list", "--json").data == again


def test_text_output_is_a_table(shop: Shop) -> None:
    listed = shop.orders.ok("topics", "list").out
    assert [line.split()[-1] for line in listed.splitlines() if "orders.placed" in line] == [
        "missing",
        "missing",
    ]
    created = shop.orders.ok("topics", "create").out
    assert [line.split()[1:] for line in created.splitlines() if "orders.placed" in line] == [
        ["2", "1", "created"],
        ["2", "1", "created"],
    ]


def test_refusal_by_the_broker_is_one_line(shop: Shop) -> None:
    result = shop.orders.run("topics", "create", SHIELDTX_TOPIC_REPLICATION="3")

    assert result.status == 1
    assert result.err.startswith(
        f"error: topic {shop.prefix}orders.placed.commit cannot be created"
    )
    assert result.err.count("\n") == 1


def test_unreachable_broker_is_one_line(shop: Shop) -> None:
    away = f"127.0.0.1:{free_port()}"
    result = shop.orders.run("topics", "create", SHIELDTX_KAFKA_BOOTSTRAP=away)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"error: Kafka at {away}, ")
    assert result.err.count("\n") == 1


def test_topics_need_an_application_that_declares_them(shop: Shop) -> None:
    result = shop.orders.run("topics", "list", app=False)

    assert result.status == 2
    assert "--app shop.orders:shield, or set SHIELDTX_APP" in result.err
