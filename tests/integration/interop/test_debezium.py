"""Debezium on Kafka Connect: it publishes an outbox of shieldtx, and its records are handled.

SQL, configuration and Python code are those of the page docs/how-to/debezium.md. Kafka Connect is
killed before its first commit of a position, so that it writes all earlier records again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from typing import Any

import pytest

from shieldtx import Event, ForeignTopic, Refused
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.conftest import wait
from tests.docs.pages import blocks
from tests.support.debezium import (
    CRM,
    FOREIGN,
    KEYS,
    PAGE,
    WITHIN_S,
    Setting,
    connected,
    connectors,
    drain,
    numbers_in,
    placed,
    prepared,
)
from tests.support.kafka_connect import KafkaConnect
from tests.support.migrated_databases import MigratedDatabases
from tests.support.service import SHARDS, Service, effect, make_topics
from tests.support.shared_servers import start_in_memory

pytestmark = pytest.mark.timeout(300)  # Kafka Connect starts twice

BEFORE, DOWN = range(20), range(20, 25)
"""Numbers of the events that are written before the kill, and while Kafka Connect is down."""
WRITTEN = 2 * len(BEFORE) + len(DOWN)
"""Number of records in each topic: those before the kill are there twice."""
REFUSED = 24


@pytest.fixture(scope="module")
def kafka_connect(databases: MigratedDatabases, kafka: EmbeddedKafka) -> Iterator[Setting]:
    """All events are in the topics, those before the kill twice; no group has read them yet."""
    prefix = f"{uuid.uuid4().hex[:12]}."
    broker = KafkaBroker(KafkaConnection(bootstrap_servers=kafka.bootstrap))
    with ExitStack() as closing_all:
        server = EmbeddedPostgres(fsync=False, settings={"wal_level": "logical"})
        closing_all.callback(server.close)
        start_in_memory(server)
        orders = prepared(server, broker, prefix)
        closing_all.callback(orders.close)
        url = closing_all.enter_context(databases.database(SHARDS))
        stock = Service("stock", url, broker, migrated=True, topic_prefix=prefix)
        closing_all.callback(stock.close)
        server.create_database("crm")
        crm = closing_all.enter_context(connected(server, "crm"))
        crm.execute(CRM)

        python: dict[str, Any] = {"shield": orders.app}
        for block in blocks(PAGE, "python"):
            exec(block, python)  # noqa: S102  the page's own code
        stock.app.consumer(f"{prefix}stock").handles("orders.placed")(reserve)
        orders.app.consumer(f"{prefix}orders").compensates("orders.placed")(effect("cancelled"))
        orders.app.declare("orders.placed")
        make_topics(orders, stock)
        with closing(broker.topics()) as topics:
            topics.create(FOREIGN.values(), partitions=2, replication=1)
            topics.create([f"__debezium-heartbeat.{prefix}"], partitions=1, replication=1)

        worker = KafkaConnect(kafka.bootstrap, connectors(server, prefix))
        closing_all.callback(worker.close)
        setting = Setting(
            orders=orders, stock=stock, crm=crm, kafka=kafka, worker=worker, python=python
        )
        worker.start()
        write_events_that_stay(orders)
        setting.write(BEFORE)
        setting.await_records(len(BEFORE))
        worker.kill()
        setting.write(DOWN)
        worker.start()
        setting.await_records(WRITTEN)
        yield setting


def reserve(session: Any, event: Event) -> None:
    if event.payload["number"] == REFUSED:
        raise Refused("sold out")
    effect("reserved")(session, event)


def write_events_that_stay(orders: Service) -> None:
    """Write an event that is due tomorrow, and one whose transaction is rolled back."""
    with orders.transaction() as session:
        orders.app.outbox.add(session, placed(98), delay=timedelta(days=1))
    with orders.transaction() as session:
        orders.app.outbox.add(session, placed(99))
        session.rollback()


def test_topic_has_the_committed_events_again_after_a_kill(kafka_connect: Setting) -> None:
    records = kafka_connect.records(kafka_connect.topic)
    ids = [dict(record.headers)["ce_id"].decode() for record in records]
    assert numbers_in(records) == {*BEFORE, *DOWN}
    assert len(set(ids)) == len(BEFORE) + len(DOWN)
    assert len(ids) == WRITTEN
    assert kafka_connect.orders.outbox() == {"INIT": len(BEFORE) + len(DOWN) + 1}


def test_consumer_group_applies_each_event_once_in_order(kafka_connect: Setting) -> None:
    drain(kafka_connect.stock, f"{kafka_connect.prefix}stock")
    applied = [*BEFORE, *DOWN][:-1]
    assert kafka_connect.stock.inbox() == {"PROCESSED": len(applied), "MAX_RECONSUMED": 1}
    keys = kafka_connect.stock.effects()
    assert sorted(keys, key=str) == sorted([placed(n).key for n in applied], key=str)
    for key in KEYS:
        found = kafka_connect.stock.rows(
            "SELECT CAST(i.payload AS json) ->> 'number' FROM effects e "
            "JOIN shield_inbox i ON CAST(i.event_id AS text) = e.event_id "
            "WHERE e.key = :key ORDER BY e.ctid",
            key=key,
        )
        numbers = [int(number) for (number,) in found]
        assert numbers == [n for n in applied if placed(n).key == key]


def test_envelope_is_that_of_the_outbox_row(kafka_connect: Setting) -> None:
    drain(kafka_connect.stock, f"{kafka_connect.prefix}stock")
    fields = (
        "event_id, source, topic, event_type, tx_kind, operation, key, biz_key, payload, "
        "causation_id, causation_source, traceparent, dataschema, headers"
    )
    sent = kafka_connect.orders.rows(
        f"SELECT {fields}, created_at FROM shield_outbox WHERE NOT waiting ORDER BY event_id"
    )
    read = kafka_connect.stock.rows(
        f"SELECT {fields}, event_time FROM shield_inbox ORDER BY event_id"
    )
    assert read == sent
    assert all(isinstance(row[-1], datetime) for row in read)


def test_rollback_of_a_consumer_is_compensated_before_settlement(kafka_connect: Setting) -> None:
    drain(kafka_connect.stock, f"{kafka_connect.prefix}stock")
    relay = kafka_connect.stock.relay()
    while relay.run_once().backlog:
        continue
    drain(kafka_connect.orders, f"{kafka_connect.prefix}orders")
    assert kafka_connect.orders.effects("cancelled") == [placed(REFUSED).key]


def test_settlement_marks_the_rows_whose_records_are_in_kafka(kafka_connect: Setting) -> None:
    drain(kafka_connect.orders, "orders-settlement")
    assert kafka_connect.orders.outbox() == {"PROCESSED": len(BEFORE) + len(DOWN), "INIT": 1}
    left = kafka_connect.orders.rows("SELECT waiting FROM shield_outbox WHERE settled_at IS NULL")
    assert left == [(True,)]


def test_slot_is_copied_to_standbys(kafka_connect: Setting) -> None:
    slots = kafka_connect.orders.rows(
        "SELECT slot_name, failover FROM pg_replication_slots WHERE database = 'orders'"
    )
    assert slots == [("shield_outbox", True)]


@pytest.mark.parametrize("converter", FOREIGN)
def test_event_of_a_foreign_outbox_has_one_effect(kafka_connect: Setting, converter: str) -> None:
    topic = FOREIGN[converter]
    assert len(kafka_connect.records(topic)) == WRITTEN
    customers = ForeignTopic(topic, decode=kafka_connect.python["read_outbox_event"], source="crm")
    group = f"{kafka_connect.prefix}{converter}"
    kafka_connect.stock.app.consumer(group).handles("CustomerMoved", topic=customers)(
        effect(converter)
    )
    drain(kafka_connect.stock, group)
    rows = kafka_connect.stock.rows(
        "SELECT event_id FROM effects WHERE what = :what", what=converter
    )
    assert sorted(rows) == [(str(uuid.UUID(int=n)),) for n in (*BEFORE, *DOWN)]
    payloads = kafka_connect.stock.rows(
        "SELECT CAST(payload AS json) ->> 'city' FROM shield_inbox WHERE consumer_group = :group",
        group=group,
    )
    assert set(payloads) == {("Łódź",)}


def test_events_of_a_lost_slot_are_sent_by_a_relay(kafka_connect: Setting) -> None:
    connector, worker = "orders-outbox", kafka_connect.worker
    worker.request("PUT", f"/connectors/{connector}/stop")
    wait(lambda: worker.states(connector) == [], "the connector has stopped", within=WITHIN_S)
    kafka_connect.orders.execute("SELECT pg_drop_replication_slot('shield_outbox')")
    with kafka_connect.orders.transaction() as session:
        kafka_connect.orders.app.outbox.add(session, placed(50))
    worker.request("PUT", f"/connectors/{connector}/resume")
    wait(lambda: worker.states(connector) == ["FAILED"], "it has no slot", within=WITHIN_S)

    worker.request("PUT", f"/connectors/{connector}/stop")
    wait(lambda: worker.states(connector) == [], "the connector has stopped", within=WITHIN_S)
    worker.request("DELETE", f"/connectors/{connector}/offsets")
    with closing(kafka_connect.orders.relay()) as relay:
        while relay.run_once().backlog:
            continue
    worker.request("PUT", f"/connectors/{connector}/resume")
    wait(lambda: worker.states(connector) == ["RUNNING"], "it has a new slot", within=WITHIN_S)
    with kafka_connect.orders.transaction() as session:
        kafka_connect.orders.app.outbox.add(session, placed(51))
    wait(
        lambda: numbers_in(kafka_connect.records(kafka_connect.topic)) == {*BEFORE, *DOWN, 50, 51},
        "all events are in the topic",
        within=WITHIN_S,
    )


def test_page_declares_the_foreign_topic_with_defaults(kafka_connect: Setting) -> None:
    customers = kafka_connect.python["customers"]
    assert (customers.name, customers.source) == (FOREIGN["schema"], "crm")
