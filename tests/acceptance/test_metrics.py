"""/metrics, /livez and /readyz of real relays and consumers."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from shieldtx.embedded.child_process import ChildProcess
from tests.acceptance.conftest import Shop, status_of
from tests.conftest import Eventually

ANY_PORT = {"SHIELDTX_HTTP": "127.0.0.1:0"}


class Scraped:
    """The samples of a process's /metrics, by name and labels."""

    def __init__(self, address: str) -> None:
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(answer(address, "/metrics")[1])
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with these labels, None if there is none."""
        wanted = set(labels.items())
        found = [
            value
            for (each, its), value in self._samples.items()
            if each == name and its.issuperset(wanted)
        ]
        return sum(found) if found else None


def answer(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{address}{path}", timeout=10) as response:  # noqa: S310
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def address_of(worker: ChildProcess, eventually: Eventually) -> str:
    """Return the address that a worker prints when it works."""
    pattern = re.compile(r"ready: .* \(pid \d+, (http://127\.0\.0\.1:\d+)\)")
    eventually(lambda: pattern.search(worker.log.read_text()), "it prints its address", within=30)
    found = pattern.search(worker.log.read_text())
    assert found is not None
    return found[1]


def test_relay_and_consumer_show_what_they_have_done(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    group = shop.stock.environment["SHOP_STOCK_GROUP"]
    relay = shop.orders.start("relay", **ANY_PORT)
    consumer = shop.stock.start("consume", group, **ANY_PORT)
    of_relay, of_consumer = (address_of(each, eventually) for each in (relay, consumer))

    shop.place(range(10))
    shop.place([10], quantity=1000)
    eventually(
        lambda: shop.stock.inbox() == {"PROCESSED": 10, "MAX_RECONSUMED": 1}, "handled", within=30
    )

    def is_counted() -> bool:
        events = Scraped(of_relay)("shieldtx_relay_events_total", outcome="processed")
        return events == 11 and Scraped(of_consumer)("shieldtx_consumer_attempts_total") == 11

    eventually(is_counted, "the settlement is counted too")
    relayed, consumed = Scraped(of_relay), Scraped(of_consumer)
    topic = {"topic": "orders.placed", "kind": "commit"}
    assert relayed("shieldtx_relay_events_total", **topic, service="orders") == 11
    assert relayed("shieldtx_relay_publish_age_seconds_count", **topic) == 11
    assert relayed("messaging_client_sent_messages_total", error_type="") == 11
    shards = relayed("shieldtx_relay_shards")
    assert shards
    assert relayed("shieldtx_relay_takeovers_total") == shards
    outcomes = {"group": group, "service": "stock", **topic}
    assert consumed("shieldtx_consumer_attempts_total", outcome="applied", **outcomes) == 10
    assert consumed("shieldtx_consumer_attempts_total", outcome="refused", **outcomes) == 1
    assert consumed("messaging_client_consumed_messages_total") == 11
    assert consumed("messaging_process_duration_seconds_count", error_type="Refused")
    for address in (of_relay, of_consumer):
        assert answer(address, "/livez") == (200, "ok\n")
        eventually(
            lambda address=address: answer(address, "/readyz") == (200, "ok\n"), "it is ready"
        )
    successes = "shieldtx_worker_last_success_timestamp_seconds"
    assert Scraped(of_relay)(successes, worker="relay", worker_job="renew")
    assert Scraped(of_consumer)(successes, worker_job="poll")
    for worker in (relay, consumer):
        worker.send_signal(signal.SIGTERM)
        assert status_of(worker) == 0


def test_workers_without_the_setting_open_no_port(shop: Shop, eventually: Eventually) -> None:
    shop.migrate()
    relay = shop.orders.start("relay")
    eventually(lambda: "ready: relay of orders (pid " in relay.log.read_text(), "it works")
    assert "http" not in relay.log.read_text()


def test_port_that_is_taken_ends_the_worker_with_the_setting(
    shop: Shop, eventually: Eventually
) -> None:
    shop.migrate()
    first = address_of(shop.orders.start("relay", **ANY_PORT), eventually)
    taken = first.removeprefix("http://")

    second = shop.orders.run("relay", SHIELDTX_HTTP=taken)

    assert second.status == 2
    assert f"error: SHIELDTX_HTTP: cannot listen at {taken}: Address already in use" in second.err
