"""ShieldTx: the entry point of a service: declares, writes events, builds relay and consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Self

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from shieldtx.app import builders
from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.event_catalog import event_catalog
from shieldtx.app.event_methods import EventMethods
from shieldtx.app.half_message_methods import HalfMessageMethods
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.replays import ParkedCheck
from shieldtx.app.stores import Stores
from shieldtx.catalog.catalog import Catalog
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.callables import check_callable
from shieldtx.domain.states import TxKind
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.delayed_events import DelayedEvents
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.broker import Broker
from shieldtx.relay.relay import Relay
from shieldtx.retention import RetentionService
from shieldtx.settings.settings import Settings
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.schema import Schema
from shieldtx.store.tables import Tables
from shieldtx.tracing.recorder import TraceRecorder


class ShieldTx(EventMethods, HalfMessageMethods):
    """The entry point of a service: declares events and handlers, and builds its workers.

    The constructor does not connect. `engine` and `broker` replace those of the settings, in tests.
    `async_engine` is the engine of coroutine handlers, with psycopg or asyncpg, where it is not to
    be made from the settings.
    `traceparent` returns the W3C trace context of the caller, which is stored with each event.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        async_engine: AsyncEngine | None = None,
        broker: Broker | None = None,
        traceparent: Callable[[], str | None] = lambda: None,
    ) -> None:
        check_callable(traceparent, what="ShieldTx(traceparent=...)", call="traceparent()")
        self.settings = settings
        """The settings given to the constructor."""
        self.hooks = Hooks()
        """Registers an application's hooks around each send and each attempt."""
        self._declarations = Declarations(settings)
        self._connections = connections = Connections(
            settings,
            engine=engine,
            async_engine=async_engine,
            longest_lease=self._declarations.longest_lease,
        )
        self._broker = broker
        self.outbox = Outbox(
            source=settings.source,
            event_types=self.event_types,
            writer=SqlOutboxWriter(
                self.tables, shards=settings.shards, relays_engine=lambda: connections.engine
            ),
            traceparent=traceparent,
            after_commit=connections.hint,
        )
        """Adds events to a transaction: `outbox.add(session, Event(...))`."""
        self.delayed = DelayedEvents(outbox=self.outbox, store=SqlDelayedEventStore(self.tables))
        """Lists, cancels and reschedules delayed events."""
        self.half_messages = HalfMessageWiring(
            settings,
            event_types=self.event_types,
            engine=lambda: connections.engine,
            checks_engine=lambda: connections.checks_engine,
            to_envelope=self.outbox.to_envelope,
            after_commit=connections.hint,
            run_on_loop=lambda call: connections.event_loop.run([call])[0],
        )
        """The half messages of a service: the methods `half`, `half_prepare` and `guard` call
        it."""
        self.stores = Stores(settings, connections=connections, half_messages=self.half_messages)
        """Stores through which the command line reads and changes this service's tables."""
        self.tracer = TraceRecorder(self.stores.trace)
        """Writes an entry for each send and each attempt if SHIELDTX_TRACE is set."""
        if settings.trace:
            self.tracer.attach(self.hooks)

    @classmethod
    def from_env(cls) -> Self:
        """Return a ShieldTx for the `SHIELDTX_*` settings; raises ConfigurationError."""
        return cls(Settings.from_env())

    # --- workers ----------------------------------------------------------------------------------

    def build_relay(self, name: str | None = None) -> Relay:
        """Return a relay; its `name`, by default a new one, must be unique, also among restarts."""
        return builders.build_relay(
            self.settings,
            connections=self._connections,
            declarations=self._declarations,
            broker=self.broker,
            hooks=self.hooks,
            name=name or builders.worker_name(),
        )

    def build_consumer(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        """Return the consumer of a declared group; raises ConfigurationError for an unknown group.

        A pass begins no further attempt once `stopping` returns true.
        """
        return builders.build_consumer(
            self.settings,
            group=group,
            stores=self.stores,
            connections=self._connections,
            declarations=self._declarations,
            outbox=self.outbox,
            broker=self.broker,
            hooks=self.hooks,
            stopping=stopping,
        )

    def parked_check(self) -> ParkedCheck:
        """Return the check that a parked record must pass before it is received again."""
        return ParkedCheck(self.settings, self._declarations)

    def build_retention(self) -> RetentionService:
        """Return the purge of this service's tables, and of its barriers in other databases."""
        return builders.build_retention(
            self.settings, connections=self._connections, half_messages=self.half_messages
        )

    # --- declared names, tables and connections ---------------------------------------------------

    def catalog(self) -> Catalog:
        """Return the declared events with the schemas of their payloads.

        Raises ConfigurationError for a payload type without a JSON Schema.
        """
        return event_catalog(self.settings, self._declarations)

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """The consumer groups that the service has declared, by name."""
        return self._declarations.groups

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted."""
        return self._declarations.topics()

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a group reads; raises ConfigurationError."""
        return self._declarations.topics_of(group)

    def group_id(self, group: str) -> str:
        """Return the broker's name of a consumer group."""
        return self._declarations.group_id(group)

    def handled_by(self, group: str) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds for which a group has handlers in this application."""
        return self._declarations.handled_by(group)

    @property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return self._connections.tables

    @property
    def schema(self) -> Schema:
        """Creates and checks the tables."""
        return self.stores.schema()

    @property
    def engine(self) -> Engine:
        """The engine of relay and consumers; services write through sessions of their own."""
        return self._connections.engine

    @property
    def connections(self) -> Connections:
        """The engines of this service, and the hints that wake its relays."""
        return self._connections

    @cached_property
    def broker(self) -> Broker:
        """The broker of the settings, or the one given to the constructor."""
        if self._broker is not None:
            return self._broker
        from shieldtx.brokers.kafka.broker import KafkaBroker  # noqa: PLC0415  writers need no Kafka client

        return KafkaBroker.from_settings(self.settings)

    def close(self) -> None:
        """Close the connections that this object has opened."""
        self.tracer.close()
        self._connections.close()
