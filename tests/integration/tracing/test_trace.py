"""The trace of one event across two services, on real PostgreSQL and Kafka."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session
from typer.testing import CliRunner, Result

from shieldtx import Event, RetryPolicy
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.cli.program import program
from shieldtx.consumer.consumer import Consumer
from shieldtx.embedded import EmbeddedKafka
from shieldtx.relay.relay import Relay
from shieldtx.tracing.model import EventTimeline, Hop
from shieldtx.tracing.timeline import first_cause, trace
from tests.support.log_records import logged
from tests.support.migrated_databases import MigratedDatabases
from tests.support.reasons import without_site
from tests.support.service import SHARDS, Service, effect, make_topics

SECRET = "4111-1111"
THRICE = RetryPolicy(
    max_attempts=3, first=timedelta(seconds=0.05), longest=timedelta(seconds=0.05), jitter=0
)


class Shop:
    """Orders, stock and, downstream of stock, shipping; each with a database of its own."""

    def __init__(self, make: Callable[..., Service], *, trace: bool = True) -> None:
        run = uuid.uuid4().hex[:10]
        self.services = {n: make(n, run, trace=trace) for n in ("orders", "stock", "shipping")}
        self.orders, self.stock, self.shipping = self.services.values()
        self.handle: Callable[[Session, Event], Any] = effect("reserved")
        self.handle_parcel: Callable[[Session, Event], Any] = effect("shipped")
        self.orders.app.declare("orders.placed")
        self.stock.app.declare("parcels.packed")
        self.orders.app.consumer(f"orders-{run}").compensates("orders.placed", retry=THRICE)(
            effect("cancelled")
        )
        self.stock.app.consumer(f"stock-{run}").handles("orders.placed", retry=THRICE)(
            lambda session, event: self.handle(session, event)  # noqa: PLW0108  replaced by tests
        )
        self.stock.app.consumer(f"stock-{run}").compensates("parcels.packed", retry=THRICE)(
            effect("unpacked")
        )
        self.shipping.app.consumer(f"shipping-{run}").handles("parcels.packed", retry=THRICE)(
            lambda session, event: self.handle_parcel(session, event)  # noqa: PLW0108  likewise
        )
        self.groups = {n: f"{n}-{run}" for n in self.services}
        make_topics(*self.services.values(), partitions=3)
        self.workers: list[Relay | Consumer] = []

    def start(self) -> None:
        for name, service in self.services.items():
            self.workers += [service.relay(), service.app.build_consumer(self.groups[name])]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for service in self.services.values():
            service.app.tracer.close()

    def place(self, key: str = "k1") -> uuid.UUID:
        with self.orders.transaction() as session:
            payload = {"card": SECRET}
            return self.orders.app.outbox.add(
                session, Event(type="orders.placed", key=key, payload=payload, biz_key=f"o-{key}")
            )

    def run_until(self, condition: Callable[[], bool], eventually: Callable[..., None]) -> None:
        def passed() -> bool:
            for worker in self.workers:
                worker.run_once()
            return condition()

        eventually(passed, "the event has come to its end", within=60)
        for service in self.services.values():
            service.app.tracer.flush()

    def trace(self, event_id: uuid.UUID, *names: str) -> EventTimeline:
        readers = {n: self.services[n].app.stores.trace() for n in names or self.services}
        life = trace(event_id, readers)
        assert life is not None
        return life

    def is_settled(self, where: str, status: str) -> Callable[[], bool]:
        service = self.services[where]
        return lambda: service.inbox().get(status, 0) == 1


@pytest.fixture
def make(databases: MigratedDatabases, kafka: EmbeddedKafka) -> Iterator[Callable[..., Service]]:
    with ExitStack() as closing:

        def service(name: str, run: str, **settings: Any) -> Service:
            url = closing.enter_context(databases.database(SHARDS))
            broker = KafkaBroker(KafkaConnection(bootstrap_servers=kafka.bootstrap))
            settings = {"topic_prefix": f"{run}."} | settings
            opened = Service(name, url, broker, migrated=True, **settings)
            closing.callback(opened.close)
            return opened

        yield service


@pytest.fixture
def shop(make: Callable[..., Service]) -> Iterator[Shop]:
    opened = Shop(make)
    yield opened
    opened.close()


def steps_of(hop: Hop) -> list[tuple[str, int | None]]:
    return [(step.what, step.attempt) for step in hop.steps]


def where(hop: Hop) -> tuple[str, str, str]:
    return hop.service, (hop.group or "").split("-")[0], hop.status


def fail(session: Session, event: Event) -> None:
    effect("never seen")(session, event)
    raise ValueError("no such shelf")


def test_a_delivered_event_is_traced_from_write_to_effect(
    shop: Shop, eventually: Callable[..., None]
) -> None:
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("stock", "PROCESSED"), eventually)

    life = shop.trace(event_id)
    assert (life.identity.type, life.identity.source) == ("orders.placed", "orders")
    assert [where(hop) for hop in life.hops] == [
        ("orders", "", "PROCESSED"),
        ("stock", "stock", "PROCESSED"),
    ]
    out, into = life.hops
    assert steps_of(out) == [("WRITTEN", None), ("CLAIMED", 1), ("PUBLISHED", 1), ("PROCESSED", 1)]
    assert steps_of(into) == [("RECEIVED", None), ("STARTED", 1), ("APPLIED", 1)]
    published, received, applied = out.steps[2], into.steps[0], into.steps[2]
    assert (published.partition, published.offset) == (received.partition, received.offset)
    assert published.offset is not None
    assert published.at <= received.at <= applied.at
    assert received.after == received.at - published.at
    assert applied.took is not None
    assert (out.steps[0].after, out.steps[1].after) == (None, out.steps[1].at - out.steps[0].at)
    assert not [*life.unknown, *out.unknown, *into.unknown, *life.caused]


def test_a_retried_event_is_traced_with_each_attempt_and_error(
    shop: Shop, eventually: Callable[..., None]
) -> None:
    tries: list[Event] = []

    def second_time(session: Session, event: Event) -> None:
        tries.append(event)
        (fail if len(tries) == 1 else effect("reserved"))(session, event)

    shop.handle = second_time
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("stock", "PROCESSED"), eventually)

    into = shop.trace(event_id).hops[1]
    assert steps_of(into) == [
        ("RECEIVED", None),
        ("STARTED", 1),
        ("RETRIED", 1),
        ("STARTED", 2),
        ("APPLIED", 2),
    ]
    assert into.steps[2].reason == "ValueError: no such shelf"
    assert into.steps[3].after >= timedelta(seconds=0.05)
    assert into.unknown == []


def test_a_failed_event_is_traced_to_its_compensation(
    shop: Shop, eventually: Callable[..., None]
) -> None:
    shop.handle = fail
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("orders", "PROCESSED"), eventually)
    assert shop.orders.effects("cancelled") == ["k1"]

    life = shop.trace(event_id)
    assert [where(hop) for hop in life.hops] == [
        ("orders", "", "PROCESSED"),
        ("stock", "stock", "MAX_RECONSUMED"),
    ]
    assert [(w, n) for w, n in steps_of(life.hops[1]) if w != "STARTED"] == [
        ("RECEIVED", None),
        ("RETRIED", 1),
        ("RETRIED", 2),
        ("REFUSED", 3),
    ]
    [back] = life.hops[1].caused
    assert (back.identity.kind, back.identity.causation_id) == ("ROLLBACK", event_id)
    assert [where(hop) for hop in back.hops] == [
        ("stock", "", "PROCESSED"),
        ("orders", "orders", "PROCESSED"),
    ]
    assert steps_of(back.hops[0])[0] == ("WRITTEN", None)
    assert back.hops[0].steps[0].after is not None
    assert steps_of(back.hops[1]) == [("RECEIVED", None), ("STARTED", 1), ("COMPENSATED", 1)]
    # Each event of the tree leads to the whole tree.
    readers = {n: s.app.stores.trace() for n, s in shop.services.items()}
    assert first_cause(back.identity.event_id, readers) == event_id


def test_caused_events_and_rollbacks_are_shown_below_their_cause(
    shop: Shop, eventually: Callable[..., None]
) -> None:
    def pack(session: Session, event: Event) -> None:
        effect("reserved")(session, event)
        parcel = Event(type="parcels.packed", key=event.key, payload={"card": SECRET})
        shop.stock.app.outbox.add(session, parcel)

    shop.handle, shop.handle_parcel = pack, fail
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("orders", "PROCESSED"), eventually)
    assert shop.stock.effects("unpacked") == ["k1"]

    life = shop.trace(event_id)
    parcel, back = life.hops[1].caused
    assert (parcel.identity.type, parcel.identity.kind) == ("parcels.packed", "COMMIT")
    assert (back.identity.type, back.identity.kind) == ("orders.placed", "ROLLBACK")
    assert back.identity.causation_id == event_id
    assert [where(hop)[1:] for hop in parcel.hops] == [
        ("", "PROCESSED"),
        ("shipping", "MAX_RECONSUMED"),
    ]
    [parcel_back] = parcel.hops[1].caused
    assert [where(hop)[:2] for hop in parcel_back.hops] == [("shipping", ""), ("stock", "stock")]
    assert steps_of(parcel_back.hops[1])[-1] == ("COMPENSATED", 1)
    assert steps_of(back.hops[1])[-1] == ("COMPENSATED", 1)
    readers = {n: s.app.stores.trace() for n, s in shop.services.items()}
    assert first_cause(parcel_back.identity.event_id, readers) == event_id


def test_one_database_shows_its_facts_and_names_the_unknown(
    shop: Shop, eventually: Callable[..., None]
) -> None:
    shop.handle = fail
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("orders", "PROCESSED"), eventually)

    mine = shop.trace(event_id, "orders")
    assert [where(hop) for hop in mine.hops] == [("orders", "", "PROCESSED")]
    assert mine.unknown == ["who received it: not in the inbox of orders"]
    [back] = mine.caused
    assert back.unknown == [
        "when it was written and published: not in the outbox of orders; stock has written it"
    ]
    theirs = shop.trace(event_id, "stock")
    assert [where(hop)[0] for hop in theirs.hops] == ["stock"]
    assert theirs.hops[0].caused[0].unknown == ["who received it: not in the inbox of stock"]


def test_trace_without_its_setting_comes_from_the_tables(
    make: Callable[..., Service], eventually: Callable[..., None]
) -> None:
    shop = Shop(make, trace=False)
    shop.handle = fail
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("orders", "PROCESSED"), eventually)
    shop.close()

    assert shop.stock.rows("SELECT count(*) FROM shield_trace") == [(0,)]
    life = shop.trace(event_id)
    out, into = life.hops
    assert steps_of(out) == [("WRITTEN", None), ("PROCESSED", 1)]
    # The inbox of the receiver has the offset of the record.
    assert out.steps[1].offset == into.steps[0].offset is not None
    assert steps_of(into) == [("RECEIVED", None), ("MAX_RECONSUMED", 3)]
    assert without_site(into.steps[1].reason) == "ValueError: no such shelf"
    assert into.unknown[0].startswith("when attempts 1, 2, 3 of 3 began and ended: not traced")
    assert steps_of(into.caused[0].hops[1]) == [("RECEIVED", None), ("COMPENSATED", 1)]


def test_unwritable_trace_prevents_no_effect(
    shop: Shop, eventually: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    for service in shop.services.values():
        service.execute("DROP TABLE shield_trace")
    shop.start()
    for n in range(20):
        shop.place(f"k{n}")
    shop.run_until(lambda: shop.stock.inbox() == {"PROCESSED": 20}, eventually)
    assert sorted(shop.stock.effects()) == sorted(f"k{n}" for n in range(20))
    assert logged(caplog.records, "trace_not_written")


# --- the command ------------------------------------------------------------------------------


def run(shop: Shop, folder: Path, *words: str, stock_url: str | None = None) -> Result:
    config = folder / "reconcile.toml"
    parts = [f'[services.{name}]\nurl = "{name.upper()}_URL"\n' for name in shop.services]
    config.write_text("\n".join(parts))
    variables = {
        f"{name.upper()}_URL": service.engine.url.render_as_string(hide_password=False)
        for name, service in shop.services.items()
    }
    if stock_url is not None:
        variables["STOCK_URL"] = stock_url
    return CliRunner().invoke(program, ["trace", "--config", str(config), *words], env=variables)


def test_the_command_shows_the_whole_tree_and_no_payload(
    shop: Shop, eventually: Callable[..., None], tmp_path: Path
) -> None:
    shop.handle = fail
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("orders", "PROCESSED"), eventually)

    as_text = run(shop, tmp_path, str(event_id))
    assert as_text.exit_code == 0, as_text.output
    lines = as_text.stdout.splitlines()
    assert lines[0].startswith(f"COMMIT orders.placed {event_id} of orders, key k1")
    for words in (
        "orders, outbox: PROCESSED",
        "written",
        "published, attempt 1, partition",
        f"stock, inbox of group {shop.groups['stock']}: MAX_RECONSUMED",
        "failed, tried again, attempt 2, took",
        "given up, rollback written, attempt 3",
        "ROLLBACK orders.placed",
        "compensated, took",
    ):
        assert words in as_text.stdout
    as_json = run(shop, tmp_path, str(event_id), "--json")
    data = json.loads(as_json.stdout)
    assert list(data) == [
        *("event_id", "event_type", "kind", "operation", "source", "topic", "key", "biz_key"),
        *("causation_id", "causation_source", "traceparent", "hops", "caused", "unknown"),
        "not_asked",
    ]
    assert list(data["hops"][0]) == [
        *("service", "group", "status", "attempts", "steps", "caused", "unknown")
    ]
    assert list(data["hops"][0]["steps"][0]) == [
        *("what", "at", "after_s", "attempt", "outcome", "partition", "offset", "took_s"),
        *("until", "reason"),
    ]
    [back] = data["hops"][1]["caused"]
    assert back["hops"][1]["steps"][-1]["what"] == "COMPENSATED"
    for output in (as_text.output, as_json.output):
        assert SECRET not in output

    # From the rollback: first its own subtree, then the whole tree with the rollback marked.
    below = run(shop, tmp_path, back["event_id"]).stdout.splitlines()
    assert below[0].startswith("ROLLBACK orders.placed")
    assert f"takes back {event_id} of orders" in below[1]
    whole = run(shop, tmp_path, back["event_id"], "--whole").stdout
    assert whole.splitlines()[0] == lines[0]
    assert "key k1, business key o-k1, asked for" in whole


def test_unreachable_service_is_named_next_to_the_others_facts(
    shop: Shop, eventually: Callable[..., None], tmp_path: Path
) -> None:
    shop.start()
    event_id = shop.place()
    shop.run_until(shop.is_settled("stock", "PROCESSED"), eventually)
    missing = shop.stock.engine.url.set(database="missing", password="wr0ng-word")
    url = missing.render_as_string(hide_password=False)

    as_text = run(shop, tmp_path, str(event_id), stock_url=url)
    assert as_text.exit_code == 0
    place = rf"\w+@{re.escape(missing.host)}:{missing.port}/missing"
    unusable = rf"not asked: service stock: {place}: the database cannot be used"
    assert re.search(unusable, as_text.stdout)
    assert "not known who received it" in as_text.stdout
    as_json = run(shop, tmp_path, str(event_id), "--json", stock_url=url)
    [absent] = json.loads(as_json.stdout)["not_asked"]
    assert absent.startswith("service stock: ")
    assert "wr0ng-word" not in as_text.output + as_json.output
