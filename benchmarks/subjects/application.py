"""The measured application: one event type, and a consumer group with one effect."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Identity,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from benchmarks.data.events import EVENT_TYPE, SOURCE
from shieldtx import Event, Refused, Settings, ShieldTx
from shieldtx.brokers.kafka.broker import KafkaBroker, KafkaConnection, KafkaPublisher
from shieldtx.consumer.handlers import ConsumerGroup

GROUP = "effects"
HAS_LISTS = hasattr(ConsumerGroup, "handles_many")
"""Whether handlers can take lists of events."""

STUCK_WHILE = "BENCH_STUCK_WHILE"
"""The variable with a file: while it exists, the handler of STUCK_KEY does not return."""
STUCK_KEY = "stuck"
_STUCK_FLAG = os.environ.get(STUCK_WHILE)

_TABLES = MetaData()
EFFECT = Table(
    "bench_effect",
    _TABLES,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("key", Text),
    Column("n", BigInteger),
)
_INSERT = insert(EFFECT)
_LISTED = (
    func.unnest(
        bindparam("keys", type_=ARRAY(Text())), bindparam("numbers", type_=ARRAY(BigInteger()))
    )
    .table_valued("key", "n")
    .render_derived()
)
_INSERT_LISTED = insert(EFFECT).from_select(["key", "n"], select(_LISTED.c.key, _LISTED.c.n))
"""One statement for all rows: a list of parameters would be a statement for each of them."""


def application(
    *, url: str, bootstrap: str, prefix: str, client: str = "kafka-python", concurrency: int = 1
) -> ShieldTx:
    """Return the application; `client` is the Kafka client of its relay."""
    settings: dict[str, Any] = {
        "source": SOURCE,
        "database_url": url,
        "kafka_bootstrap": bootstrap,
        "topic_prefix": prefix,
    }
    if concurrency > 1:
        settings["consumer_concurrency"] = concurrency
    broker = None
    if "kafka_producer" in Settings.model_fields:
        settings["kafka_producer"] = client
    elif client == "confluent-kafka":
        broker = _Confluent(bootstrap)
    shield = ShieldTx(Settings(**settings), broker=broker)
    shield.declare(EVENT_TYPE)
    return shield


def from_environment() -> ShieldTx:
    """Return the application for the command line; BENCH_CLIENT names the Kafka client."""
    settings = Settings.from_env()
    shield = application(
        url=settings.database_url.get_secret_value(),
        bootstrap=settings.kafka_bootstrap,
        prefix=settings.topic_prefix,
        client=os.environ.get("BENCH_CLIENT", "kafka-python"),
    )
    handle(shield, GROUP)
    return shield


def handle(shield: ShieldTx, name: str, *, lists: bool = False) -> None:
    """Declare the handler of a consumer group; it may take lists where HAS_LISTS."""
    group = shield.consumer(name)
    if lists:
        group.handles_many(EVENT_TYPE)(_handle_many)  # type: ignore[attr-defined]
    else:
        group.handles(EVENT_TYPE)(_handle)


def handle_refusing(shield: ShieldTx, name: str, every: int) -> None:
    """Declare a handler that writes, and then refuses one of `every` events; 0: none."""

    def write_and_refuse(session: Session, event: Event) -> None:
        _handle(session, event)
        if every and _number_of(event) % every == 0:
            raise Refused("no stock")

    shield.consumer(name).handles(EVENT_TYPE)(write_and_refuse)


def handle_waiting(shield: ShieldTx, name: str, seconds: float, *, coroutine: bool) -> None:
    """Declare a handler that waits, as for another service, before it writes."""
    group = shield.consumer(name)

    def wait_and_handle(session: Session, event: Event) -> None:
        time.sleep(seconds)
        _handle(session, event)

    async def wait_and_handle_later(session: AsyncSession, event: Event) -> None:
        await asyncio.sleep(seconds)
        await session.run_sync(_handle, event)

    if coroutine:
        group.handles(EVENT_TYPE)(wait_and_handle_later)
    else:
        group.handles(EVENT_TYPE)(wait_and_handle)


def _handle(session: Session, event: Event) -> None:
    while _STUCK_FLAG and event.payload["key"] == STUCK_KEY and Path(_STUCK_FLAG).exists():
        time.sleep(0.01)
    session.execute(_INSERT, {"key": event.payload["key"], "n": event.payload["n"]})


def _number_of(event: Event) -> int:
    """Return a number that spreads over the events: the keys' events arrive one after the other."""
    return int(event.payload["n"]) + int(event.payload["key"].removeprefix("key-"))


def _handle_many(session: Session, events: Sequence[Event]) -> None:
    keys = [event.payload["key"] for event in events]
    numbers = [event.payload["n"] for event in events]
    session.execute(_INSERT_LISTED, {"keys": keys, "numbers": numbers})


class _Confluent(KafkaBroker):
    """Kafka, published to with confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        connection = KafkaConnection(bootstrap_servers=bootstrap, client_id=f"shieldtx-{SOURCE}")
        super().__init__(connection)
        self._to = connection

    def publisher(self) -> KafkaPublisher:
        """Return a new publisher."""
        from shieldtx.brokers.kafka import confluent_producer  # noqa: PLC0415  an extra

        return KafkaPublisher(self._to, connect=partial(confluent_producer.connect))
