"""The testing kit is honest: a scenario ends in memory as on a real PostgreSQL and a real Kafka."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.orm import Session

from shieldtx import AttemptOutcome, Event, LocalOutcome, Refused, RetryPolicy, Settings, ShieldTx
from shieldtx.domain.states import TxKind
from shieldtx.embedded import EmbeddedKafka
from shieldtx.ports.broker import DeliveryOutcome, Record
from shieldtx.testing import memory_app
from tests.support.migrated_databases import MigratedDatabases

WAIT = timedelta(milliseconds=200)
"""How long retries and delayed events wait."""
PATIENCE_S = 90
METADATA = MetaData()
EFFECT = Table("effect", METADATA, Column("what", String), Column("id", Integer))


@dataclass
class Shop:
    """Orders that are reserved, refused, retried, delayed, dead, checked; and a broken record."""

    shield: ShieldTx

    def __post_init__(self) -> None:
        shield = self.shield
        retry = RetryPolicy(max_attempts=3, first=WAIT, longest=WAIT, jitter=0)
        shield.declare("orders.placed")
        shield.declare("orders.paid")
        orders = shield.consumer("orders")

        @orders.handles("orders.placed", retry=retry)
        def reserve(session: Session, event: Event) -> None:
            number = event.payload["id"]
            if number in {2, 13}:
                raise Refused("sold out")
            if number == 3 and event.attempt < 3:
                raise RuntimeError("the shelf fell over")
            session.execute(insert(EFFECT).values(what="reserved", id=number))

        @orders.compensates("orders.placed", retry=RetryPolicy(max_attempts=1))
        def cancel(session: Session, event: Event) -> None:
            if event.payload["id"] == 13:
                raise RuntimeError("no refund for 13")
            session.execute(insert(EFFECT).values(what="cancelled", id=event.payload["id"]))

        @shield.checks("orders.paid")
        def was_paid(event: Event) -> LocalOutcome:
            return LocalOutcome.COMMIT if event.payload["id"] == 1 else LocalOutcome.ROLLBACK

    def act(self) -> None:
        """Write the events of the scenario."""
        METADATA.create_all(self.shield.engine)
        with Session(self.shield.engine) as session, session.begin():
            for number in (1, 2, 3, 13):
                event = Event(type="orders.placed", payload={"id": number}, key=str(number))
                self.shield.outbox.add(session, event)
            late = Event(type="orders.placed", payload={"id": 4})
            self.shield.outbox.add(session, late, delay=WAIT)
        for number in (1, 2):
            self.shield.half_prepare("orders.paid", {"id": number}, immunity=WAIT)
        publisher = self.shield.broker.publisher()
        topic = f"{self.shield.settings.topic_prefix}orders.placed.commit"
        [delivery] = publisher.publish(
            [Record(topic=topic, key=None, value=b"no event")], timeout=10
        )
        assert delivery.outcome is DeliveryOutcome.ACKNOWLEDGED
        publisher.close()

    def outcome(self) -> dict[str, Any]:
        """Return all that is left: effects, rows, and parked records."""
        t = self.shield.tables
        with self.shield.engine.connect() as connection:
            o, i = t.outbox.c, t.inbox.c
            outbox = connection.execute(
                select(o.event_type, o.tx_kind, o.payload, o.status, o.attempts, o.last_error)
            )
            inbox = connection.execute(
                select(i.event_type, i.tx_kind, i.payload, i.status, i.attempts, i.last_error)
            )
            parked = connection.scalars(select(t.parked.c.reason))
            return {
                "effects": sorted(map(tuple, connection.execute(select(EFFECT)))),
                "outbox": sorted(map(str, outbox)),
                "inbox": sorted(map(str, inbox)),
                "parked": list(parked),
            }


def on_servers(shop: Shop) -> None:
    """Run the workers until no row waits and no record is left."""
    relay, consumer = shop.shield.build_relay(), shop.shield.build_consumer("orders")
    [checks] = shop.shield.half_messages.check_backs()
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            checks.run_once()
            relay.run_once()
            had_work = consumer.run_once().more
            is_idle = not had_work and consumer.has_caught_up()
            if is_idle and not shop.shield.stores.trace().unsettled():
                return
            assert time.monotonic() < deadline, shop.outcome()
    finally:
        consumer.close()
        relay.close()


def test_a_scenario_ends_in_memory_as_on_servers(
    databases: MigratedDatabases, kafka: EmbeddedKafka
) -> None:
    prefix = f"kit-{uuid.uuid4().hex}."
    with databases.database(shards=4) as url:
        settings = Settings(
            source="shop",
            database_url=url,
            kafka_bootstrap=kafka.bootstrap,
            topic_prefix=prefix,
            kafka_group_prefix=prefix,
        )
        real = Shop(ShieldTx(settings))
        topics = real.shield.broker.topics()
        topics.create(real.shield.topics(), partitions=2, replication=1)
        topics.close()
        real.act()
        on_servers(real)
        expected = real.outcome()
        real.shield.close()
    shop = Shop(ShieldTx(settings))
    with memory_app(shop.shield) as app:
        shop.act()
        outcomes = app.drain(check=False).outcomes
        for _ in range(3):
            app.advance(WAIT)
            outcomes += app.drain(check=False).outcomes
        assert shop.outcome() == expected
        assert app.drain().waiting == []
        # The servers' outcome has each of these, or the scenario would prove little.
        assert outcomes == {
            AttemptOutcome.APPLIED: 3,
            AttemptOutcome.RETRIED: 2,
            AttemptOutcome.REFUSED: 2,
            AttemptOutcome.COMPENSATED: 1,
            AttemptOutcome.DEAD: 1,
        }
        assert len(app.published("orders.placed")) == 5
        assert len(app.published("orders.placed", kind=TxKind.ROLLBACK)) == 2
        assert [event.payload for event in app.published("orders.paid")] == [{"id": 1}]
    done = [("cancelled", 2), ("reserved", 1), ("reserved", 3), ("reserved", 4)]
    assert expected["effects"] == done
    assert len(expected["parked"]) == 1
