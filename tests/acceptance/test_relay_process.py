"""`shieldtx relay` as a process: stopped, killed, frozen, and together with another one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shieldtx.embedded import EmbeddedKafka
from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.free_ports import free_port
from tests.acceptance.conftest import (
    LEASE_S,
    Shop,
    first_of_each_key,
    is_ready,
    status_of,
    unread_bytes,
)
from tests.conftest import Eventually
from tests.support.paused_process import frozen

TWENTY = range(20)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker that the tests may freeze: no other test file uses it."""
    with EmbeddedKafka() as server:
        yield server


IN_ORDER = {f"k{k}": [n for n in TWENTY if n % 4 == k] for k in range(4)}


def test_relay_publishes_events_written_before_and_after_start(
    shop: Shop, eventually: Eventually
) -> None:
    shop.migrate()
    shop.place(range(10))
    shop.orders.start("relay")
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 10}, "the first ten are published")

    shop.place(range(10, 20))
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 20}, "the others are published")

    assert first_of_each_key(shop.records()) == IN_ORDER


def test_commit_wakes_the_relay(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    shop.orders.start("relay", SHIELDTX_RELAY_POLL_INTERVAL="600")
    eventually(lambda: shop.orders.shards_by_owner().get(None) is None, "all shards are held")

    shop.place([1])

    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 1}, "it was woken", within=10)


def test_sigterm_waits_for_events_in_flight(shop: Shop, eventually: Eventually) -> None:
    relay = a_relay_at_work(shop, eventually)
    with frozen(shop.kafka.pid):
        shop.place(TWENTY)
        eventually(lambda: shop.orders.outbox().get("PROCESSING") == 20, "all are in flight")
        relay.send_signal(signal.SIGTERM)
        eventually(lambda: "action=worker_stopping" in relay.log.read_text(), "it is stopping")

    assert status_of(relay) == 0
    assert shop.orders.outbox() == {"PROCESSED": 21}
    assert shop.orders.shards_by_owner() == {None: 64}
    assert shop.orders.one("SELECT count(*) FROM shield_relay") == 0


def test_sigterm_during_an_outage_releases_all_rows(shop: Shop, eventually: Eventually) -> None:
    relay = a_relay_at_work(shop, eventually)
    with frozen(shop.kafka.pid):
        shop.place(TWENTY)
        eventually(lambda: shop.orders.outbox().get("PROCESSING") == 20, "all are in flight")
        relay.send_signal(signal.SIGTERM)
        assert status_of(relay) == 0
        assert shop.orders.outbox() == {"PROCESSED": 1, "INIT": 20}
        assert shop.orders.shards_by_owner() == {None: 64}

    shop.orders.start("relay")
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 21}, "another relay published them")
    assert first_of_each_key(shop.records()) == {"warm": [-1]} | IN_ORDER


def test_second_sigterm_ends_the_relay_at_once(shop: Shop, eventually: Eventually) -> None:
    relay = a_relay_at_work(
        shop, eventually, SHIELDTX_RELAY_LEASE="60", SHIELDTX_RELAY_SEND_TIMEOUT="40"
    )
    with frozen(shop.kafka.pid):
        shop.place(TWENTY)
        eventually(lambda: shop.orders.outbox().get("PROCESSING") == 20, "all are in flight")
        relay.send_signal(signal.SIGTERM)
        eventually(lambda: "action=worker_stopping" in relay.log.read_text(), "it is stopping")
        relay.send_signal(signal.SIGTERM)
        assert status_of(relay, within=5) == 128 + signal.SIGTERM
    assert shop.orders.outbox()["PROCESSING"] == 20


def test_relay_killed_with_events_in_flight_keeps_guarantees(
    shop: Shop, eventually: Eventually
) -> None:
    """Twenty events are in flight: none is lost, doubled or out of order."""
    relay = a_relay_at_work(shop, eventually)
    # The broker does not answer, so the events are in flight for as long as the test wants.
    with frozen(shop.kafka.pid):
        shop.place(TWENTY, note="x" * 500)
        eventually(lambda: shop.orders.outbox().get("PROCESSING") == 20, "all are claimed")
        # The records lie in the broker's socket: it will store them, and no relay gets the
        # response.
        eventually(lambda: unread_bytes(shop.kafka.port) > 20 * 500, "all are sent")
        relay.kill()
    assert relay.exit_status == -signal.SIGKILL
    assert shop.orders.outbox() == {"PROCESSED": 1, "PROCESSING": 20}

    shop.orders.start("relay")
    shop.stock.start("consume", shop.stock.environment["SHOP_STOCK_GROUP"])
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 21}, "nothing is lost", within=30)
    eventually(lambda: len(shop.reserved()) >= 21, "all have their effect", within=30)
    records = [record for record in shop.records() if record[0] != "warm"]
    eventually(lambda: shop.stock.inbox() == {"PROCESSED": 21}, "all are received", within=30)

    # The broker must have the records twice, or this test would prove little.
    assert len(records) == 40
    assert first_of_each_key(records) == IN_ORDER
    effects = [effect for effect in shop.reserved() if effect[0] != "warm"]
    assert len(effects) == 20
    assert first_of_each_key(effects) == IN_ORDER


def test_relay_frozen_beyond_its_lease_changes_no_rows(shop: Shop, eventually: Eventually) -> None:
    sleeper = a_relay_at_work(shop, eventually)
    with ExitStack() as asleep:
        with frozen(shop.kafka.pid):
            shop.place(TWENTY)
            eventually(lambda: shop.orders.outbox().get("PROCESSING") == 20, "all are in flight")
            asleep.enter_context(frozen(sleeper.pid))
        other = shop.orders.start("relay")
        eventually(lambda: shop.orders.outbox() == {"PROCESSED": 21}, "taken over", within=30)
        before = shop.orders.rows(
            "SELECT event_id, attempts, settled_at FROM shield_outbox ORDER BY 1"
        )

    eventually(lambda: "action=events_taken_over" in sleeper.log.read_text(), "it knows")
    sleeper.send_signal(signal.SIGTERM)

    assert status_of(sleeper) == 0
    assert other.is_running
    after = shop.orders.rows("SELECT event_id, attempts, settled_at FROM shield_outbox ORDER BY 1")
    assert after == before
    assert first_of_each_key(shop.records()) == {"warm": [-1]} | IN_ORDER


def test_two_relays_share_shards_and_one_takes_over(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    first = shop.orders.start("relay")
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [64], "one holds them all")
    shop.orders.start("relay")
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [32, 32], "they share")
    shop.place(TWENTY)
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 20}, "together they publish all")

    first.kill()
    shop.place(range(20, 40))
    eventually(
        lambda: shop.orders.outbox() == {"PROCESSED": 40}, "the other one takes over", LEASE_S + 15
    )
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [64], "it holds them all")
    numbers = first_of_each_key(shop.records())
    assert numbers == {f"k{k}": [n for n in range(40) if n % 4 == k] for k in range(4)}


def test_stopped_relay_releases_its_shards_to_the_other_at_once(
    shop: Shop, eventually: Eventually
) -> None:
    shop.migrate()
    long_lease = {"SHIELDTX_RELAY_LEASE": "600", "SHIELDTX_RELAY_POLL_INTERVAL": "0.2"}
    first = shop.orders.start("relay", **long_lease)
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [64], "one holds them all")

    first.send_signal(signal.SIGTERM)
    assert status_of(first) == 0
    shop.orders.start("relay", **long_lease)
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [64], "the other has them")


def test_once_publishes_due_events_and_exits(shop: Shop) -> None:
    shop.migrate()
    shop.place(TWENTY)

    result = shop.orders.ok("relay", "--once", "--json")

    assert result.data["published"] == 20
    assert shop.orders.outbox() == {"PROCESSED": 20}
    assert shop.orders.shards_by_owner() == {None: 64}
    assert result.data["unsent"] == {"rows": 0, "precision": "exact"}
    assert result.data["shards_of_other_relays"] == 0
    assert shop.orders.ok("relay", "--once").out == (
        "0 published, 0 retried, 0 failed, 0 released\n"
        "due events unsent: 0; other relays hold 0 of 64 shards\n"
    )


def test_once_fails_if_other_relays_hold_the_shards(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    unreachable = f"127.0.0.1:{free_port()}"
    shop.orders.start("relay", SHIELDTX_KAFKA_BOOTSTRAP=unreachable)
    eventually(lambda: list(shop.orders.shards_by_owner().values()) == [64], "one holds them all")
    shop.place(TWENTY)

    result = shop.orders.run("relay", "--once", "--json", SHIELDTX_KAFKA_BOOTSTRAP=unreachable)

    assert result.status == 1
    assert result.data["published"] == 0
    assert result.data["unsent"] == {"rows": 20, "precision": "exact"}
    assert result.data["shards_of_other_relays"] > 0
    assert "error: 20 due events remain unsent, other relays hold " in result.err


def test_once_without_a_broker_releases_all_rows_and_fails(shop: Shop) -> None:
    shop.migrate()
    shop.place(TWENTY)

    result = shop.orders.run("relay", "--once", SHIELDTX_KAFKA_BOOTSTRAP=f"127.0.0.1:{free_port()}")

    assert result.status == 1
    assert "error: events stay in the outbox: Kafka at 127.0.0.1:" in result.err
    assert "Traceback" not in result.err
    assert shop.orders.outbox() == {"INIT": 20}
    assert shop.orders.one("SELECT max(attempts) FROM shield_outbox") == 0


def test_workers_wait_for_an_unreachable_broker(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    port = free_port()
    away = {"SHIELDTX_KAFKA_BOOTSTRAP": f"127.0.0.1:{port}"}
    shop.place(TWENTY)
    relay = shop.orders.start("relay", **away)
    consumer = shop.stock.start("consume", shop.stock.environment["SHOP_STOCK_GROUP"], **away)
    for worker in (relay, consumer):
        eventually(lambda w=worker: f"Kafka at 127.0.0.1:{port}" in w.log.read_text(), "it is told")
        assert "Traceback" not in worker.log.read_text()

    with EmbeddedKafka(port=port):
        shop.orders.ok("topics", "create", **away)
        eventually(lambda: shop.orders.outbox() == {"PROCESSED": 20}, "it publishes", within=40)
        eventually(lambda: len(shop.reserved()) == 20, "it consumes", within=40)
        for worker in (relay, consumer):
            worker.send_signal(signal.SIGTERM)
            assert status_of(worker) == 0


def test_relay_refuses_missing_tables_at_once(shop: Shop) -> None:
    began = time.monotonic()
    relay = shop.orders.launch("relay")
    assert status_of(relay) == 2
    assert relay.log.read_text() == (
        "error: the tables do not exist yet: run `shieldtx db upgrade`\n"
    )
    assert not is_ready(relay)
    assert time.monotonic() - began < LEASE_S * 4


def a_relay_at_work(shop: Shop, eventually: Eventually, **environment: str) -> ChildProcess:
    """Start a relay that owns all shards and is connected to the broker."""
    shop.migrate()
    relay = shop.orders.start("relay", **environment)
    shop.place([-1], key="warm")
    eventually(lambda: shop.orders.outbox() == {"PROCESSED": 1}, "it works")
    return relay
