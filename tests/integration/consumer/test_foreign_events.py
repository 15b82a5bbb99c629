"""Events of other producers in a service: CloudEvents, and records of foreign topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from shieldtx import Event, ForeignEvent, ForeignTopic, ReceivedRecord, Refused, RetryPolicy
from shieldtx.app.replays import ParkedCheck
from shieldtx.app.start_checks import check_group, check_relay
from shieldtx.domain.external_ids import event_id_of
from shieldtx.errors import ConfigurationError, TopicMissing
from shieldtx.ports.broker import Record
from shieldtx.store.parked_replays import ReplayResult
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.log_records import logged
from tests.support.service import QUICK, Service, Wire, drain, effect, make_topics

Make = Callable[..., Service]
STRUCTURED = (("content-type", b"application/cloudevents+json"),)
LEGACY = "legacy.orders"


@pytest.fixture
def stock(make_service: Make) -> Service:
    return make_service("stock", topic_prefix="shop.")


def send(
    service: Service, topic: str, value: bytes, *headers: tuple[str, bytes], key: bytes = b"k"
) -> None:
    with closing(service.app.broker.publisher()) as publisher:
        (delivery,) = publisher.publish([Record(topic, key, value, headers)], timeout=5)
    assert delivery.outcome == "ACKNOWLEDGED", delivery


def cloud_event(id_: str, source: str = "/legacy", **more: Any) -> bytes:
    whole = {"specversion": "1.0", "id": id_, "source": source, "type": "orders.placed"}
    return json.dumps(whole | more).encode()


def create(service: Service, *names: str) -> None:
    with closing(service.app.broker.topics()) as admin:
        admin.create(names, partitions=2, replication=1)


# --- CloudEvents ---------------------------------------------------------------------------------


def test_events_are_the_same_by_source_and_id(stock: Service) -> None:
    seen: list[tuple[str, str | None]] = []

    def reserve(session: Session, event: Event) -> None:
        seen.append((event.source, event.external_id))
        effect("reserved")(session, event)

    stock.app.consumer("stock").handles("orders.placed")(reserve)
    make_topics(stock)
    for source, id_ in (("/x", "A-4711"), ("/y", "A-4711"), ("/x", "a-4711"), ("/x", "A-4711")):
        send(stock, "shop.orders.placed.commit", cloud_event(id_, source), *STRUCTURED)
    consumer = stock.app.build_consumer("stock")
    drain(consumer)
    assert sorted(seen) == [("/x", "A-4711"), ("/x", "a-4711"), ("/y", "A-4711")]
    assert stock.inbox() == {"PROCESSED": 3}


def test_given_up_event_goes_back_under_its_producers_id(stock: Service, wire: Wire) -> None:
    def refuse(session: Session, event: Event) -> None:
        raise Refused("sold out")

    stock.app.consumer("stock").handles("orders.placed")(refuse)
    make_topics(stock)
    send(stock, "shop.orders.placed.commit", cloud_event("A-4711"), *STRUCTURED)
    drain(stock.app.build_consumer("stock"), stock.relay())
    (rollback,) = [r for r in wire.published if r.topic == "shop.orders.placed.rollback"]
    headers = dict(rollback.headers)
    assert (headers["ce_causationid"], headers["ce_causationsource"]) == (b"A-4711", b"/legacy")
    assert json.loads(rollback.value) == {"reason": "Refused: sold out"}


def test_rollback_finds_the_event_of_another_producer(stock: Service) -> None:
    group = stock.app.consumer("stock")
    group.handles("orders.placed")(effect("reserved"))
    group.compensates("orders.placed")(effect("released"))
    make_topics(stock)
    send(stock, "shop.orders.placed.commit", cloud_event("A-4711"), *STRUCTURED)
    consumer = stock.app.build_consumer("stock")
    drain(consumer)
    rollback = cloud_event("R-1", "/billing", causationid="A-4711", causationsource="/legacy")
    for _ in range(2):
        send(stock, "shop.orders.placed.rollback", rollback, *STRUCTURED)
    drain(consumer)
    event_id = str(event_id_of("/legacy", "A-4711"))
    effects = stock.rows("SELECT event_id, what FROM effects ORDER BY what DESC")
    assert effects == [(event_id, "reserved"), (event_id, "released")]


def test_rollback_in_capitals_finds_the_event_of_this_service(make_service: Make) -> None:
    shop = make_service("shop", topic_prefix="shop.")
    shop.app.declare("orders.placed")
    shop.app.consumer("undo").compensates("orders.placed")(effect("released"))
    make_topics(shop)
    with shop.transaction() as session:
        event_id = shop.app.outbox.add(session, Event(type="orders.placed", payload=1, key="k"))
    drain(shop.relay())
    cause = {"causationid": str(event_id).upper(), "causationsource": "shop"}
    send(shop, "shop.orders.placed.rollback", cloud_event("R-1", "/billing", **cause), *STRUCTURED)
    drain(shop.app.build_consumer("undo"))
    assert shop.rows("SELECT event_id, what FROM effects") == [(str(event_id), "released")]


# --- foreign topics ------------------------------------------------------------------------------


def decode(record: ReceivedRecord) -> ForeignEvent | None:
    if record.value is None or record.value == b"ping":
        return None
    row = json.loads(record.value)
    return ForeignEvent(payload=row, id=row.get("no"), type=row.get("type"))


TOPIC = ForeignTopic(LEGACY, decode=decode)


def handled(stock: Service, *, retry: RetryPolicy = QUICK, topic: ForeignTopic = TOPIC) -> None:
    stock.app.consumer("stock").handles("legacy.order", topic=topic, retry=retry)(effect("order"))


def test_records_of_a_foreign_topic_have_one_effect_each(
    stock: Service, caplog: pytest.LogCaptureFixture
) -> None:
    handled(stock)
    make_topics(stock)
    create(stock, LEGACY)
    for value in (b'{"no":"1"}', b"ping", b'{"no":"2"}', b'{"no":"1"}', b'{"type":"other"}'):
        send(stock, LEGACY, value)
    result = stock.app.build_consumer("stock").run_once()
    assert (result.fresh, result.duplicates, result.ignored, result.parked) == (2, 1, 2, 0)
    ids = [str(event_id_of(f"topic:{LEGACY}", number)) for number in ("1", "2")]
    assert [row[0] for row in stock.rows("SELECT event_id FROM effects")] == ids
    assert stock.effects() == ["k", "k"]
    (line,) = logged(caplog.records, "events_passed_over")
    assert (line["event_type"], line["count"]) == ("other", 1)


def test_two_groups_read_a_foreign_topic(stock: Service) -> None:
    handled(stock)
    other = ForeignTopic(LEGACY, decode=lambda r: ForeignEvent(payload=None, id="all"))
    stock.app.consumer("audit").handles("legacy.order", topic=other)(effect("audit"))
    make_topics(stock)
    create(stock, LEGACY)
    for number in ("1", "2"):
        send(stock, LEGACY, json.dumps({"no": number}).encode())
    drain(stock.app.build_consumer("stock"), stock.app.build_consumer("audit"))
    assert (len(stock.effects("order")), len(stock.effects("audit"))) == (2, 1)


def test_order_of_a_key_is_kept_over_retries(stock: Service) -> None:
    failures = iter([True, True])

    def flaky(session: Session, event: Event) -> None:
        if event.payload["no"] == "1" and next(failures, False):
            raise RuntimeError("not yet")
        statement = text("INSERT INTO effects VALUES ('', '', :what)")
        session.execute(statement, {"what": event.payload["no"]})

    stock.app.consumer("stock").handles("legacy.order", topic=TOPIC, retry=QUICK)(flaky)
    make_topics(stock)
    create(stock, LEGACY)
    for number in ("1", "2", "3"):
        send(stock, LEGACY, json.dumps({"no": number}).encode())
    drain(stock.app.build_consumer("stock"))
    assert [what for (what,) in stock.rows("SELECT what FROM effects")] == ["1", "2", "3"]


def test_record_that_its_decoder_refuses_is_parked_and_replayed(
    stock: Service, make_service: Make
) -> None:
    handled(stock)
    make_topics(stock)
    create(stock, LEGACY)
    for value in (b"?", b'{"no":"2"}'):
        send(stock, LEGACY, value)
    consumer = stock.app.build_consumer("stock")
    drain(consumer)
    assert stock.effects() == ["k"]
    (letter,) = stock.app.stores.dead_letters().parked(limit=10, group="stock", values=True)
    assert letter.record.topic == LEGACY
    assert "decode: JSONDecodeError" in letter.reason
    assert "in decode)" in letter.reason
    # The next release reads it.
    repaired = ForeignTopic(LEGACY, decode=lambda r: ForeignEvent(payload=None, id="repaired"))
    group = stock.app.groups["stock"]
    group._foreign[LEGACY] = repaired
    check = ParkedCheck(stock.app.settings, stock.app._declarations)
    (done,) = stock.app.stores.parked_replays().replay([letter], check, who="test")
    assert done.result is ReplayResult.RECEIVED
    drain(consumer)
    assert stock.effects() == ["k", "k"]


def test_events_of_a_recreated_topic_are_handled(stock: Service, wire: Wire) -> None:
    handled(stock)
    make_topics(stock)
    broker = wire.broker
    assert isinstance(broker, MemoryBroker)
    create(stock, LEGACY)
    consumer = stock.app.build_consumer("stock")
    for values in ((b'{"a":1}', b'{"a":2}'), (b'{"a":3}', b'{"a":2}')):
        for value in values:
            send(stock, LEGACY, value)
        drain(consumer)
        for log in broker._cluster.topics[LEGACY].logs:
            log.clear()
        broker.forget_offsets("stock")
    # Without an id, the second record is the same event: same offset, key and value.
    assert len(stock.effects()) == 3


def test_replayed_record_without_an_id_is_the_same_event(stock: Service, wire: Wire) -> None:
    is_broken = True

    def read(record: ReceivedRecord) -> ForeignEvent:
        if is_broken:
            raise ValueError("broken")
        return ForeignEvent(payload=None)

    handled(stock, topic=ForeignTopic(LEGACY, decode=read))
    make_topics(stock)
    create(stock, LEGACY)
    send(stock, LEGACY, b"1")
    consumer = stock.app.build_consumer("stock")
    drain(consumer)
    is_broken = False
    (letter,) = stock.app.stores.dead_letters().parked(limit=10, group="stock", values=True)
    check = ParkedCheck(stock.app.settings, stock.app._declarations)
    stock.app.stores.parked_replays().replay([letter], check, who="test")
    broker = wire.broker
    assert isinstance(broker, MemoryBroker)
    broker.forget_offsets("stock")
    result = consumer.run_once()
    assert (result.fresh, result.duplicates) == (0, 1)


def test_given_up_record_writes_nothing_into_the_foreign_topic(stock: Service, wire: Wire) -> None:
    def refuse(session: Session, event: Event) -> None:
        raise Refused("no")

    stock.app.consumer("stock").handles("legacy.order", topic=TOPIC)(refuse)
    make_topics(stock)
    create(stock, LEGACY)
    send(stock, LEGACY, b'{"no":"1"}')
    sent = len(wire.published)
    drain(stock.app.build_consumer("stock"), stock.relay())
    (rollback,) = wire.published[sent:]
    assert rollback.topic == "shop.legacy.order.rollback"
    assert dict(rollback.headers)["ce_causationid"] == b"1"
    assert stock.inbox() == {"MAX_RECONSUMED": 1}
    assert stock.outbox() == {"PROCESSED": 1}


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        (RetryPolicy(max_attempts=1), "DEAD"),
        (RetryPolicy(max_attempts=1, then="park"), "DEAD"),
        (RetryPolicy(max_attempts=1, then="rollback"), "MAX_RECONSUMED"),
    ],
    ids=lambda value: getattr(value, "then", value),
)
def test_foreign_event_is_parked_unless_the_policy_is_rollback(
    stock: Service, policy: RetryPolicy, status: str
) -> None:
    def fail(session: Session, event: Event) -> None:
        raise RuntimeError("broken")

    stock.app.consumer("stock").handles("legacy.order", topic=TOPIC, retry=policy)(fail)
    make_topics(stock)
    create(stock, LEGACY)
    send(stock, LEGACY, b'{"no":"1"}')
    drain(stock.app.build_consumer("stock"), stock.relay())
    assert stock.inbox() == {status: 1}
    assert sum(stock.outbox().values()) == (status == "MAX_RECONSUMED")


def test_too_many_unfinished_events_pause_a_foreign_partition(make_service: Make) -> None:
    stock = make_service("stock", topic_prefix="shop.", consumer_pending_limit=2)

    def fail(session: Session, event: Event) -> None:
        raise RuntimeError("broken")

    stock.app.consumer("stock").handles("legacy.order", topic=TOPIC)(fail)
    make_topics(stock)
    create(stock, LEGACY)
    for number in range(5):
        send(stock, LEGACY, json.dumps({"no": str(number)}).encode())
    consumer = stock.app.build_consumer("stock")
    consumer.run_once()
    assert consumer.run_once().paused == 1


def test_foreign_topics_are_not_created(stock: Service) -> None:
    handled(stock)
    assert stock.app.topics() == ["shop.legacy.order.rollback"]
    assert stock.app.foreign_topics() == [LEGACY]
    assert stock.app.topics_of("stock") == [LEGACY]
    make_topics(stock)
    with pytest.raises(TopicMissing, match=f"start the producer of {LEGACY}"):
        check_group(stock.app, "stock", may_wait=False)
    create(stock, LEGACY)
    check_group(stock.app, "stock", may_wait=False)


def test_relay_needs_the_topic_of_a_foreign_events_refusal(stock: Service) -> None:
    handled(stock)
    create(stock, LEGACY)
    with pytest.raises(TopicMissing, match=r"writes topics .*: shop\.legacy\.order\.rollback"):
        check_relay(stock.app, may_wait=False)
    make_topics(stock)
    check_relay(stock.app, may_wait=False)


def test_foreign_topic_with_the_name_of_an_own_topic_is_refused(stock: Service) -> None:
    group = stock.app.consumer("stock")
    group.handles("orders.placed")(effect("order"))
    name = "shop.orders.placed.commit"
    group.handles("legacy.order", topic=ForeignTopic(name, decode=decode))(effect("order"))
    with pytest.raises(ConfigurationError, match="as a foreign topic"):
        stock.app.build_consumer("stock")


def test_tombstones_reach_the_decoder(stock: Service, wire: Wire) -> None:
    seen: list[bytes | None] = []

    def note(record: ReceivedRecord) -> ForeignEvent | None:
        seen.append(record.value)
        return ForeignEvent(payload={"deleted": record.value is None})

    handled(stock, topic=ForeignTopic(LEGACY, decode=note))
    make_topics(stock)
    create(stock, LEGACY)
    broker = wire.broker
    assert isinstance(broker, MemoryBroker)
    tombstone: Any = Record(LEGACY, b"k", b"", ())
    # Its publisher, as that of a relay, sends no record without a value.
    broker._cluster.topics[LEGACY].append(tombstone._replace(value=None), 0)
    result = stock.app.build_consumer("stock").run_once()
    assert (seen, result.fresh) == ([None], 1)


def test_decoder_with_a_cancelled_task_parks_the_record(stock: Service) -> None:
    def decode(record: ReceivedRecord) -> ForeignEvent:
        raise asyncio.CancelledError

    handled(stock, topic=ForeignTopic(LEGACY, decode=decode))
    make_topics(stock)
    create(stock, LEGACY)
    send(stock, LEGACY, b"{}")
    drain(stock.app.build_consumer("stock"))
    [(reason,)] = stock.rows("SELECT reason FROM shield_parked")
    assert "CancelledError" in reason


def test_functions_for_types_that_nothing_declares_are_logged(
    stock: Service, caplog: pytest.LogCaptureFixture
) -> None:
    stock.app.declare("orders.placed")
    group = stock.app.consumer("stock")
    group.handles("orders.cancelled")(effect("cancelled"))
    group.compensates("orders.cancelled")(effect("undone"))
    group.compensates("orders.palced")(effect("undone"))
    stock.app.local_rollback("orders.placed")(effect("back"))
    stock.app.local_rollback("orders.plcaed")(effect("back"))
    stock.app.upcasts("orders.plcd", from_version=1)(lambda payload: payload)
    make_topics(stock)
    for check in (partial(check_group, stock.app, "stock"), partial(check_relay, stock.app)):
        caplog.clear()
        check(may_wait=False)
        found = logged(caplog.records, "event_type_not_declared")
        assert [(line["function"], line["event_type"]) for line in found] == [
            ("compensation", "orders.palced"),
            ("local rollback", "orders.plcaed"),
            ("upcaster", "orders.plcd"),
        ]
