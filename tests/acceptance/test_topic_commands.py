"""`shieldtx topics`: create, list."""

from __future__ import annotations

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from shieldtx.embedded.free_ports import free_port
from tests.acceptance.conftest import Shop


def test_missing_topics_are_created_and_all_are_listed(shop: Shop) -> None:
    names = [f"{shop.prefix}orders.placed.{kind}" for kind in ("commit", "rollback")]
    orders, stock = shop.orders.environment, shop.stock.environment
    commit, rollback = ["written"], [f"read by {orders['SHOP_ORDERS_GROUP']}"]
    absent = {"exists": False, "created": False, "partitions": None, "replication": None}
    absent |= {"compacted": None, "retention_seconds": None}
    there = {"exists": True, "created": False, "partitions": 2, "replication": 1}
    there |= {"compacted": False, "retention_seconds": 7 * 24 * 3600}

    def listed(state: dict[str, object], *uses: list[str]) -> list[dict[str, object]]:
        return [{"topic": n, "uses": u} | state for n, u in zip(names, uses, strict=True)]

    found = shop.orders.ok("topics", "list", "--json").data
    assert found == listed(absent, commit, rollback)
    created = shop.orders.ok("topics", "create", "--json").data
    assert created == listed(there | {"created": True}, commit, rollback)
    # Another number of partitions leaves existing topics unchanged.
    assert shop.orders.ok("topics", "create", "--json", "--partitions", "3").data == listed(
        there, commit, rollback
    )
    assert shop.stock.ok("topics", "list", "--json").data == listed(
        there, [f"read by {stock['SHOP_STOCK_GROUP']}"], ["written"]
    )


def test_options_choose_partitions_and_replication(shop: Shop) -> None:
    options = ("--partitions", "5", "--replication", "1")
    created = shop.stock.ok("topics", "create", "--json", *options).data
    assert [(topic["partitions"], topic["replication"]) for topic in created] == [(5, 1)] * 2


def test_text_output_is_a_table(shop: Shop) -> None:
    listed = shop.orders.ok("topics", "list").out
    lines = [line.split() for line in listed.splitlines() if "orders.placed" in line]
    assert [(line[1], *line[-4:]) for line in lines] == [
        ("written", "-", "-", "-", "missing"),
        ("read", "-", "-", "-", "missing"),
    ]
    created = shop.orders.ok("topics", "create").out
    lines = [line.split() for line in created.splitlines() if "orders.placed" in line]
    assert [line[-7:] for line in lines] == [["2", "1", "7", "d", "0", "h", "created"]] * 2


def test_relay_refuses_to_start_without_its_topics(shop: Shop) -> None:
    shop.orders.ok("db", "upgrade")
    for once in ((), ("--once",)):
        result = shop.orders.run("relay", *once)
        assert (result.status, result.out) == (2, "")
        assert result.err == (
            "error: relay of orders writes topics that do not exist: "
            f"{shop.prefix}orders.placed.commit; create them with `shieldtx topics create`\n"
        )


def test_workers_refuse_a_compacted_topic(shop: Shop) -> None:
    shop.migrate()
    topic = f"{shop.prefix}orders.placed.commit"
    admin = KafkaAdminClient(bootstrap_servers=shop.kafka.bootstrap)
    config = {"cleanup.policy": "compact,delete", "retention.ms": "3600000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, config)])
    admin.close()
    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    for service, worker in ((shop.orders, ("relay",)), (shop.stock, ("consume", group))):
        result = service.run(*worker, "--once")
        assert (result.status, result.out) == (2, "")
        assert f"compacted topics: {topic}; their brokers delete an event" in result.err
    assert "1 h 0 min, COMPACTED" in shop.stock.ok("topics", "list").out
    (commit, _) = shop.stock.ok("topics", "list", "--json").data
    assert (commit["compacted"], commit["retention_seconds"]) == (True, 3600)


def test_refusal_by_the_broker_is_one_line(shop: Shop) -> None:
    result = shop.orders.run("topics", "create", SHIELDTX_TOPIC_REPLICATION="3")
    assert "and replication 3: " in result.err

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
