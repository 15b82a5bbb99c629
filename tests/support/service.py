"""A service for tests: its own migrated database, a broker, and passes run by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from shieldtx import RetryPolicy, Settings, ShieldTx
from shieldtx.app import builders
from shieldtx.consumer.consumer import Consumer, ConsumerSettings
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.errors import BrokerError
from shieldtx.ports.broker import (
    Backpressure,
    Broker,
    Delivery,
    DeliveryOutcome,
    Publisher,
    ReceivedRecord,
    Record,
    Subscriber,
    TopicAdmin,
)
from shieldtx.relay.relay import Relay
from shieldtx.testing.memory_broker import MemoryBroker
from tests.support.handler_styles import PLAIN, HandlerStyle

SHARDS = 8
QUICK = RetryPolicy(max_attempts=3, first=timedelta(0), longest=timedelta(0), jitter=0)
"""Three attempts without any delay."""
IDLE = timedelta(milliseconds=10)
SECONDS_LATE = 10
"""For a busy machine; where a test uses it, the next poll is ten minutes or more away."""


def as_received(record: Record) -> ReceivedRecord:
    """Return a record as a consumer would receive it, from the beginning of a partition."""
    return ReceivedRecord(
        topic=record.topic,
        partition=0,
        offset=0,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


class App(ShieldTx):
    """An application whose close() closes its workers, so that their threads end."""

    def __init__(self, settings: Settings, *, style: HandlerStyle = PLAIN, **given: Any) -> None:
        super().__init__(settings, **given)
        self._style = style
        self._workers: list[Relay | Consumer] = []

    def consumer(self, group: str) -> ConsumerGroup:
        return self._style.group(super().consumer(group))

    def local_rollback(self, event_type: str) -> Callable[[Any], Any]:
        return self._style.declaring(super().local_rollback)(event_type)

    def build_relay(self, name: str | None = None) -> Relay:
        made = super().build_relay(name)
        self._workers.append(made)
        return made

    def build_consumer(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        with self._without_idle_waits():
            made = super().build_consumer(group, stopping=stopping)
        self._workers.append(made)
        return made

    @contextmanager
    def _without_idle_waits(self) -> Iterator[None]:
        """Shorten the idle polls of a broker in memory, whose records arrive at once."""
        broker = self.broker.broker if isinstance(self.broker, Wire) else self.broker
        if isinstance(broker, MemoryBroker):
            quick = partial(ConsumerSettings, poll_timeout=IDLE)
            with patch.object(builders, "ConsumerSettings", quick):
                yield
        else:
            yield

    def close(self) -> None:
        for worker in self._workers:
            # A test may have left the worker without its tables, or without its broker.
            with suppress(DBAPIError, BrokerError):
                worker.close()
        super().close()


class Service:
    """A ShieldTx application with shortcuts to query its tables."""

    def __init__(
        self,
        name: str,
        url: str,
        broker: Broker,
        *,
        migrated: bool = False,
        style: HandlerStyle = PLAIN,
        **settings: Any,
    ) -> None:
        self.engine: Engine = create_engine(url)
        self.async_engine = style.engine(url)
        defaults = {"shards": SHARDS, "relay_wakeup": False, "consumer_concurrency": style.lanes}
        self.app = App(
            Settings(source=name, database_url=url, **defaults | settings),
            engine=self.engine,
            async_engine=self.async_engine,
            broker=broker,
            style=style,
        )
        if not migrated:
            self.app.schema.upgrade()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (event_id text, key text, what text)"))

    def close(self) -> None:
        self.app.close()
        self.engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin():
            yield session

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement), parameters)]

    def execute(self, statement: str, **parameters: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), parameters)

    def outbox(self) -> dict[str, int]:
        """Return how many outbox rows are in each status."""
        return dict(self.rows("SELECT status, count(*) FROM shield_outbox GROUP BY 1"))

    def inbox(self) -> dict[str, int]:
        """Return how many inbox rows are in each status."""
        return dict(self.rows("SELECT status, count(*) FROM shield_inbox GROUP BY 1"))

    def effects(self, what: str = "%") -> list[str]:
        """Return the keys of the effects, in the order in which they were committed."""
        rows = self.rows("SELECT key FROM effects WHERE what LIKE :what", what=what)
        return [key for (key,) in rows]

    def relay(self, name: str | None = None) -> Relay:
        """Return a relay that already owns its shards."""
        relay = self.app.build_relay(name)
        relay.renew()
        return relay


def effect(what: str) -> Callable[[Session, Any], None]:
    """Return a handler that writes one row."""

    def handler(session: Session, event: Any) -> None:
        session.execute(
            text("INSERT INTO effects VALUES (:id, :key, :what)"),
            {"id": str(event.id), "key": event.key, "what": what},
        )

    return handler


def forget_groups(app: ShieldTx, *names: str) -> None:
    """Take the declarations of consumer groups back, as another release of a service would."""
    for name in names:
        del app._declarations.groups[name]


def drain(*workers: Relay | Consumer, passes: int = 200) -> None:
    """Run passes until a whole round of them finds nothing to do."""
    for _ in range(passes):
        busy = [worker.run_once().more for worker in workers]
        if not any(busy):
            return
    raise AssertionError(f"still busy after {passes} rounds")


def drain_and_close(*workers: Relay | Consumer) -> None:
    """Run relays and consumers until all of them are idle, and close them."""
    drain(*workers)
    for worker in workers:
        worker.close()


class Wire:
    """A broker that lets a test decide the delivery of single records."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.fate: Callable[[Record], Delivery | None] = lambda record: None
        """Returns the delivery of a record; None publishes the record."""
        self.lose_answers = False
        """Also publish the records that `fate` decides: only their acknowledgements are lost."""
        self.published: list[Record] = []
        self.before_publish: Callable[[], None] = lambda: None

    def publisher(self) -> Publisher:
        return _WiredPublisher(self, self.broker.publisher())

    def subscriber(self, group: str, topics: list[str]) -> Subscriber:
        return self.broker.subscriber(group, topics)

    def topics(self) -> TopicAdmin:
        return self.broker.topics()


class _WiredPublisher:
    def __init__(self, wire: Wire, real: Publisher) -> None:
        self._wire = wire
        self._real = real

    def publish(
        self, records: Sequence[Record], *, timeout: float, with_offsets: bool = False
    ) -> Sequence[Delivery]:
        self._wire.before_publish()
        answers = [self._wire.fate(record) for record in records]
        through = [
            record
            for record, answer in zip(records, answers, strict=True)
            if answer is None or self._wire.lose_answers
        ]
        real = dict(
            zip(
                map(id, through),
                self._real.publish(through, timeout=timeout, with_offsets=with_offsets),
                strict=True,
            )
        )
        self._wire.published += through
        return [
            answer if answer is not None else real[id(record)]
            for record, answer in zip(records, answers, strict=True)
        ]

    def pressure(self) -> Backpressure:
        return self._real.pressure()

    def close(self) -> None:
        self._real.close()


def answer(outcome: DeliveryOutcome, reason: str = "as the test wants it") -> Delivery:
    return Delivery(outcome=outcome, reason=reason)


def assert_in_time(late: Sequence[float]) -> None:
    """Assert that each event came after its due time without waiting for a poll, one within a
    second.

    The documentation promises a second for a relay that keeps up; on a busy machine not all do.
    """
    assert all(0 <= seconds < SECONDS_LATE for seconds in late), late
    assert min(late) < 1, late


def make_topics(*services: Service, partitions: int = 4) -> None:
    for service in services:
        with closing(service.app.broker.topics()) as topics:
            topics.create(service.app.topics(), partitions=partitions, replication=1)
