"""Services whose outboxes Debezium reads, as the page docs/how-to/debezium.md describes it."""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
from kafka import KafkaConsumer, TopicPartition

from shieldtx import Event
from shieldtx.brokers.kafka.broker import KafkaBroker
from shieldtx.domain.states import Operation
from shieldtx.embedded import EmbeddedKafka, EmbeddedPostgres
from tests.conftest import wait
from tests.docs.pages import DOCS, blocks
from tests.support.kafka_connect import KafkaConnect
from tests.support.service import Service

PAGE = DOCS / "how-to" / "debezium.md"
KEYS = [f"Schlüssel-{n}" for n in range(4)]
WITHIN_S = 60.0
CRM = """
CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text,
                          payload jsonb);
CREATE PUBLICATION crm_outbox FOR TABLE outboxevent
"""
FOREIGN = {"schema": "outbox.event.customer", "text": "crm.customer"}
"""A topic for each converter of the value: the default, and one for texts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Two services, a foreign one, and the Kafka Connect that reads their outboxes."""

    orders: Service
    stock: Service
    crm: psycopg.Connection
    kafka: EmbeddedKafka
    worker: KafkaConnect
    python: dict[str, Any]
    """What the page's Python code defines."""

    @property
    def prefix(self) -> str:
        return self.orders.app.settings.topic_prefix

    @property
    def topic(self) -> str:
        return f"{self.prefix}orders.placed.commit"

    def write(self, numbers: range) -> None:
        """Write an event with each number, in a transaction of its own, into both outboxes."""
        for number in numbers:
            with self.orders.transaction() as session:
                self.orders.app.outbox.add(session, placed(number))
            payload = json.dumps({"number": number, "city": "Łódź"})
            self.crm.execute(
                "INSERT INTO outboxevent VALUES (%s, 'customer', %s, 'CustomerMoved', %s)",
                [uuid.UUID(int=number), KEYS[number % 4], payload],
            )

    def records(self, topic: str) -> list[Any]:
        """Return all records of a topic."""
        with closing(KafkaConsumer(bootstrap_servers=self.kafka.bootstrap)) as consumer:
            places = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends = consumer.end_offsets(places)
            found: list[Any] = []
            while any(consumer.position(place) < ends[place] for place in places):
                for records in consumer.poll(timeout_ms=500).values():
                    found += records
        return found

    def await_records(self, count: int) -> None:
        """Wait until each topic has this number of records, or more."""
        for topic in (self.topic, *FOREIGN.values()):
            wait(
                lambda topic=topic: len(self.records(topic)) >= count,
                f"{topic} has {count} records",
                within=WITHIN_S,
            )


def placed(number: int) -> Event:
    if number == 0:
        return Event(type="orders.placed", payload={"number": number})
    return Event(
        type="orders.placed",
        payload={"number": number, "amount": "12.50"},
        key=KEYS[number % 4],
        biz_key=f"order-{number}",
        operation=Operation.UPDATE,
    )


def numbers_in(records: list[Any]) -> set[int]:
    found = [json.loads(record.value) for record in records]
    payloads = [each.get("payload", each) for each in found]
    return {(json.loads(p) if isinstance(p, str) else p)["number"] for p in payloads}


def drain(service: Service, group: str) -> None:
    """Have a group handle all records of its topics."""
    with closing(service.app.build_consumer(group)) as consumer:
        while consumer.run_once().more or not consumer.has_caught_up():
            continue


def connectors(server: EmbeddedPostgres, prefix: str) -> list[dict[str, Any]]:
    """Return the page's connector, and two of a service that uses the router's defaults."""
    (page,) = map(json.loads, blocks(PAGE, "json"))
    place = {"database.hostname": "127.0.0.1", "database.port": str(server.port)}
    assert page["config"].keys() >= place.keys()
    own = place | {
        "topic.prefix": prefix,
        "transforms.outbox.route.topic.replacement": f"{prefix}${{routedByValue}}.commit",
    }
    crm = place | {
        "connector.class": page["config"]["connector.class"],
        "plugin.name": "pgoutput",
        "database.user": server.user,
        "database.password": server.password,
        "database.dbname": "crm",
        "publication.name": "crm_outbox",
        "publication.autocreate.mode": "disabled",
        "table.include.list": "public.outboxevent",
        "snapshot.mode": "no_data",
        "transforms": "outbox",
        "transforms.outbox.type": page["config"]["transforms.outbox.type"],
        "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
    }
    text = {
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "transforms.outbox.route.topic.replacement": FOREIGN["text"],
    }
    return [
        page | {"config": page["config"] | own},
        {"name": "schema", "config": crm | {"topic.prefix": "schema", "slot.name": "schema"}},
        {"name": "text", "config": crm | text | {"topic.prefix": "text", "slot.name": "text"}},
    ]


def prepared(server: EmbeddedPostgres, broker: KafkaBroker, prefix: str) -> Service:
    """Return the service orders, whose database is prepared as the page requires."""
    server.create_database("orders")
    orders = Service("orders", server.url("orders"), broker, topic_prefix=prefix)
    (statements,) = blocks(PAGE, "sql")
    for statement in statements.split(";"):
        if statement.strip():
            orders.execute(statement)
    return orders


def connected(server: EmbeddedPostgres, database: str) -> psycopg.Connection:
    return psycopg.connect(server.url(database).replace("+psycopg", "", 1), autocommit=True)
