"""`shieldtx consume` as a process: graceful, killed, and up to the compensation."""

from __future__ import annotations

import signal

from shieldtx.embedded.child_process import ChildProcess
from tests.acceptance.conftest import Shop, first_of_each_key, status_of
from tests.conftest import Eventually

TWENTY = range(20)
IN_ORDER = {f"k{k}": [n for n in TWENTY if n % 4 == k] for k in range(4)}


def stock_group(shop: Shop) -> str:
    return shop.stock.environment["SHOP_STOCK_GROUP"]


def orders_group(shop: Shop) -> str:
    return shop.orders.environment["SHOP_ORDERS_GROUP"]


def a_consumer_at_the_gate(shop: Shop, eventually: Eventually) -> ChildProcess:
    """Start the stock consumer and wait until one of its handlers waits in its transaction."""
    consumer = shop.stock.start("consume", stock_group(shop))
    eventually(lambda: shop.handlers_at_the_gate() == 1, "a handler runs", within=30)
    return consumer


def test_consumer_applies_events_in_order(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.orders.start("relay")
    shop.stock.start("consume", stock_group(shop))

    shop.place(TWENTY)

    eventually(lambda: len(shop.reserved()) == 20, "all have their effect", within=30)
    assert first_of_each_key(shop.reserved()) == IN_ORDER


def test_refused_order_is_cancelled_upstream(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    for service, group in ((shop.orders, orders_group(shop)), (shop.stock, stock_group(shop))):
        service.start("relay")
        service.start("consume", group)

    shop.place([1, 2])
    shop.place([3], quantity=1000)

    eventually(
        lambda: shop.orders.rows("SELECT number FROM cancelled") == [(3,)], "cancelled", within=30
    )
    eventually(lambda: len(shop.reserved()) == 2, "the others are reserved", within=30)
    assert shop.stock.inbox() == {"PROCESSED": 2, "MAX_RECONSUMED": 1}
    assert shop.orders.inbox() == {"PROCESSED": 1}


def test_sigterm_lets_the_handler_finish(shop: Shop, eventually: Eventually) -> None:
    """Nothing is left half done."""
    shop.migrate()
    shop.place(TWENTY)
    shop.orders.ok("relay", "--once")
    with shop.closed_gate():
        consumer = a_consumer_at_the_gate(shop, eventually)
        consumer.send_signal(signal.SIGTERM)
        eventually(lambda: "action=worker_stopping" in consumer.log.read_text(), "it is stopping")

    assert status_of(consumer) == 0
    # The open transaction has committed; the other attempts of its batch are rolled back.
    done = len(shop.reserved())
    assert 1 <= done < 20
    assert shop.stock.inbox() == {"PROCESSED": done, "PROCESSING": 20 - done}
    begun = "settled_at IS NULL AND (lease_token IS NOT NULL OR attempts > 0)"
    assert shop.stock.one(f"SELECT count(*) FROM shield_inbox WHERE {begun}") == 0

    shop.stock.ok("consume", stock_group(shop), "--once")
    assert first_of_each_key(shop.reserved()) == IN_ORDER
    assert len(shop.reserved()) == 20


def test_second_sigterm_ends_the_consumer_in_a_handler(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.place(TWENTY)
    shop.orders.ok("relay", "--once")
    with shop.closed_gate():
        consumer = a_consumer_at_the_gate(shop, eventually)
        consumer.send_signal(signal.SIGTERM)
        eventually(lambda: "action=worker_stopping" in consumer.log.read_text(), "it is stopping")
        consumer.send_signal(signal.SIGTERM)
        assert status_of(consumer, within=5) == 128 + signal.SIGTERM
    assert shop.reserved() == []


def test_killed_consumer_loses_and_duplicates_nothing(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.place(TWENTY)
    shop.orders.ok("relay", "--once")
    with shop.closed_gate():
        consumer = a_consumer_at_the_gate(shop, eventually)
        consumer.kill()
    assert shop.stock.inbox() == {"PROCESSING": 20}

    shop.stock.start("consume", stock_group(shop))

    eventually(lambda: shop.stock.inbox() == {"PROCESSED": 20}, "all are handled", within=40)
    assert len(shop.reserved()) == 20
    assert first_of_each_key(shop.reserved()) == IN_ORDER
    # The attempts that were killed with the process were counted before they ran, and only then.
    assert shop.stock.one("SELECT max(attempts) FROM shield_inbox") == 1


def test_once_handles_all_events_after_a_killed_member(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.place(TWENTY[:10])
    shop.orders.ok("relay", "--once")
    member = shop.stock.start("consume", stock_group(shop))
    eventually(lambda: len(shop.reserved()) == 10, "the first are handled", within=30)
    shop.place(TWENTY[10:])
    shop.orders.ok("relay", "--once")
    # The broker keeps the killed member in the group for a while: the next member waits for that.
    member.kill()

    result = shop.stock.ok("consume", stock_group(shop), "--once", "--json")

    assert len(shop.reserved()) == 20
    assert first_of_each_key(shop.reserved()) == IN_ORDER
    assert result.data["parked"] == 0
    again = shop.stock.ok("consume", stock_group(shop), "--once", "--json").data
    nothing = dict.fromkeys(("records", "fresh", "duplicates", "parked"), 0)
    left = {"unfinished": {"rows": 0, "precision": "exact"}, "paused_partitions": 0}
    assert again == nothing | left


def test_once_handles_events_in_progress_at_a_killed_worker(
    shop: Shop, eventually: Eventually
) -> None:
    """Their records are read and their offsets committed: the leases of the dead keep them."""
    shop.migrate()
    shop.place(TWENTY)
    shop.orders.ok("relay", "--once")
    with shop.closed_gate():
        a_consumer_at_the_gate(shop, eventually).kill()
    assert shop.stock.inbox() == {"PROCESSING": 20}

    result = shop.stock.ok("consume", stock_group(shop), "--once", "--json").data

    assert first_of_each_key(shop.reserved()) == IN_ORDER
    assert shop.stock.inbox() == {"PROCESSED": 20}
    assert result["applied"] == 20
    assert result["unfinished"]["rows"] == 0


def test_once_reports_events_in_progress_at_another_worker(
    shop: Shop, eventually: Eventually
) -> None:
    shop.migrate()
    shop.place([1])
    shop.orders.ok("relay", "--once")
    with shop.closed_gate():
        a_consumer_at_the_gate(shop, eventually).kill()
    # A worker of another host: nobody here knows whether it has died.
    shop.stock.execute(
        "UPDATE shield_inbox SET lease_token = gen_random_uuid(), "
        "lease_until = now() + interval '1 hour'"
    )

    result = shop.stock.ok("consume", stock_group(shop), "--once", "--json").data

    assert result["unfinished"] == {"rows": 1, "precision": "exact"}
    assert shop.reserved() == []


def test_once_runs_an_event_and_its_compensation(shop: Shop) -> None:
    shop.migrate()
    shop.place([1])
    shop.place([2], quantity=1000)

    shop.orders.ok("relay", "--once")
    assert shop.stock.ok("consume", stock_group(shop), "--once").out == (
        "2 records, 2 fresh, 0 duplicates, 0 parked, 1 applied, 1 refused\n"
        "events unfinished in the inbox: 0; partitions paused: 0\n"
    )
    shop.stock.ok("relay", "--once")
    assert shop.orders.ok("consume", orders_group(shop), "--once").out == (
        "1 records, 1 fresh, 0 duplicates, 0 parked, 1 compensated\n"
        "events unfinished in the inbox: 0; partitions paused: 0\n"
    )

    assert shop.orders.rows("SELECT number FROM cancelled") == [(2,)]


def test_missing_topic_names_the_command_that_creates_it(shop: Shop) -> None:
    shop.stock.ok("db", "upgrade")

    result = shop.stock.run("consume", stock_group(shop))

    assert result.status == 2
    assert result.err == (
        f"error: consumer group '{stock_group(shop)}' reads topics that do not exist: "
        f"{shop.prefix}orders.placed.commit; create them with `shieldtx topics create`\n"
    )


def test_unknown_group_is_refused_with_the_known_groups(shop: Shop) -> None:
    shop.stock.ok("db", "upgrade")

    result = shop.stock.run("consume", "nobody")

    assert result.status == 2
    assert (
        f"'nobody' has no handlers in this application (groups: {stock_group(shop)})" in result.err
    )


def test_consumer_refuses_missing_tables_at_once(shop: Shop) -> None:
    result = shop.stock.run("consume", stock_group(shop))

    assert result.status == 2
    assert result.err == "error: the tables do not exist yet: run `shieldtx db upgrade`\n"


def test_consumer_refuses_restarted_sequences_with_the_repair(shop: Shop) -> None:
    shop.migrate()
    shop.place([1])
    shop.orders.ok("relay", "--once")
    shop.stock.ok("consume", stock_group(shop), "--once")
    shop.stock.execute("ALTER TABLE shield_inbox ALTER COLUMN seq RESTART WITH 1")

    refused = shop.stock.run("consume", stock_group(shop), "--once")

    assert refused.status == 2
    assert "the sequence of shield_inbox.seq goes on at 1" in refused.err
    assert "`SELECT setval('public.shield_inbox_seq_seq', 1)`" in refused.err


def test_consumer_refuses_a_group_of_another_service(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    group = stock_group(shop)
    shop.stock.start("consume", group)
    shop.place([1])
    shop.orders.ok("relay", "--once")
    eventually(lambda: len(shop.reserved()) == 1, "the stock service is in the group", within=30)

    refused = shop.stock.run("consume", group, "--once", SHIELDTX_SOURCE="depot")
    apart = shop.stock.run(
        *("consume", group, "--once"),
        SHIELDTX_SOURCE="depot",
        SHIELDTX_KAFKA_GROUP_PREFIX="depot.",
    )

    assert refused.status == 2
    assert f"group '{group}' has members of another service" in refused.err
    assert "shieldtx-stock" in refused.err
    assert apart.status == 0
    assert "another service" not in apart.err
