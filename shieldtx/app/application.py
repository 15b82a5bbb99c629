"""ShieldTx: the one object of a service: it declares, writes and builds relay and consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack
from uuid import UUID

from sqlalchemy import Engine

from shieldtx.app import builders
from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.stores import Stores
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.handlers import ConsumerGroup, HandlerFunction
from shieldtx.domain.callables import check_callable
from shieldtx.domain.event_types import EventType, EventTypeRegistry, OnBacklog
from shieldtx.domain.events import NO_HEADERS, Event
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import LocalOutcome, Operation, TxKind
from shieldtx.half_messages.block import HalfMessageBlock
from shieldtx.half_messages.messages import EventFields
from shieldtx.half_messages.transactional_decorator import Argument, LocalTransactionSpec
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.delayed_events import DelayedEvents
from shieldtx.outbox.outbox import Outbox
from shieldtx.outbox.publish_decorator import DueAt, PayloadField, Publication
from shieldtx.outbox.transaction import CallersTransaction
from shieldtx.ports.broker import Broker
from shieldtx.relay.relay import Relay
from shieldtx.retention import RetentionService
from shieldtx.settings.settings import Settings
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.schema import Schema
from shieldtx.store.tables import Tables
from shieldtx.tracing.recorder import TraceRecorder

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=HandlerFunction)
C = TypeVar("C", bound=Callable[[Event], LocalOutcome])


class ShieldTx:
    """The one object a service makes: it declares events and handlers, and builds the workers.

    Making it connects to nothing. `engine` and `broker` replace those of the settings, in tests.
    `traceparent` returns the W3C trace context of the caller, which is stored with each event.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        broker: Broker | None = None,
        traceparent: Callable[[], str | None] = lambda: None,
    ) -> None:
        check_callable(traceparent, what="ShieldTx(traceparent=...)", call="traceparent()")
        self.settings = settings
        """The settings it was made with."""
        self.hooks = Hooks()
        """Where an application registers what is called around each send and each attempt."""
        self._declarations = Declarations(settings)
        self._connections = connections = Connections(
            settings, engine=engine, longest_lease=self._declarations.longest_lease
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
        """Where a service writes events: `outbox.add(session, Event(...))`."""
        self.delayed = DelayedEvents(outbox=self.outbox, store=SqlDelayedEventStore(self.tables))
        """Where a service cancels and reschedules its delayed events."""
        self.half_messages = HalfMessageWiring(
            settings,
            event_types=self.event_types,
            engine=lambda: connections.engine,
            checks_engine=lambda: connections.checks_engine,
            to_envelope=self.outbox.to_envelope,
            after_commit=connections.hint,
        )
        """The half messages of a service: the methods `half`, `prepare` and `guard` call it."""
        self.stores = Stores(settings, connections=connections, half_messages=self.half_messages)
        """What the command line reads and changes in this service's tables."""
        self.tracer = TraceRecorder(self.stores.trace)
        """Writes an entry for each send and each attempt where SHIELDTX_TRACE is set."""
        if settings.trace:
            self.tracer.attach(self.hooks)

    @classmethod
    def from_env(cls) -> Self:
        """Read the settings from `SHIELDTX_*`; raises ConfigurationError for those at fault."""
        return cls(Settings.from_env())

    # --- events -----------------------------------------------------------------------------------

    def declare(
        self,
        event_type: str,
        *,
        payload: Any = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type that is written with `outbox.add`.

        `payload` is its type (any JSON without it), `topic` its logical topic (the type's name
        without it), `retry` the attempts to publish it. Raises ConfigurationError for a name or a
        type that cannot be used, and for a second declaration that differs.
        """
        return self.event_types.declare(
            event_type,
            payload=payload,
            topic=topic,
            retry=retry,
            backlog_limit=backlog_limit,
            on_backlog=on_backlog,
        )

    def publishes(
        self,
        event_type: str,
        *,
        key: PayloadField = None,
        biz_key: PayloadField = None,
        payload: Any = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: DueAt[timedelta] = None,
        at: DueAt[datetime] = None,
        level: DueAt[int] = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Publish what the decorated method returns, in the transaction that it is called with.

        `key` and `biz_key` name fields of the returned payload (or are functions of it), and so may
        the one of `delay`, `at` and `level` that chooses when the event is due. `payload` is its
        type where the return annotation does not say it. An event type that several methods publish
        is declared first, with `declare`.
        """
        publication = Publication(
            event_type=event_type,
            key=key,
            biz_key=biz_key,
            operation=operation,
            headers=headers,
            delay=delay,
            at=at,
            level=level,
        )
        return self._declarations.publishes(
            self.outbox, publication, payload=payload, topic=topic, retry=retry
        )

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Declare what undoes the business data of an event that can never be delivered.

        It is called as `function(session, event)` in the transaction that marks the event FAILED.
        """
        return self._declarations.local_rollback(event_type)

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, to declare its handlers on."""
        return self._declarations.consumer(group)

    # --- half messages ----------------------------------------------------------------------------

    def half(
        self,
        event_type: str,
        payload: Any = None,
        *,
        rollback_on: tuple[type[BaseException], ...] = (),
        **fields: Unpack[EventFields],
    ) -> HalfMessageBlock:
        """Open a block around a local transaction that is not in the outbox's own database.

        `with shield.half("orders.placed", order, key=order.id) as tx:` prepares the message first,
        and does not enter the block if it cannot. The end of the block commits the message; an
        error of `rollback_on` discards it, and any other leaves its outcome to a check.
        """
        return self.half_messages.half(event_type, payload, rollback_on=rollback_on, **fields)

    def half_prepare(
        self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]
    ) -> UUID:
        """Prepare a half message by itself and return its id, to be committed or rolled back."""
        return self.half_messages.prepare(event_type, payload, **fields)

    def half_commit(self, *event_ids: UUID) -> None:
        """Send half messages whose local transaction committed."""
        self.half_messages.commit(*event_ids)

    def half_rollback(self, *event_ids: UUID) -> None:
        """Discard half messages whose local transaction rolled back."""
        self.half_messages.rollback(*event_ids)

    def guard(self, transaction: CallersTransaction, *event_ids: UUID) -> None:
        """Guard a local transaction with the half message of the block around it.

        In a decorated method with those of its decorators, and not with its callers'. Outside of
        blocks with those that `half_prepare` returned the ids of. Raises TransactionRefused in a
        block that is inside of another: call the block's own `guard`.
        """
        self.half_messages.guard(transaction, *event_ids)

    def transactional(
        self,
        event_type: str,
        *,
        payload: Argument,
        key: PayloadField = None,
        biz_key: PayloadField = None,
        payload_type: Any = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: timedelta | None = None,
        immunity: timedelta | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
    ) -> Callable[[F], F]:
        """Make the decorated method a local transaction, with a half message prepared before it.

        `payload` names the argument that is sent (or is a function of all arguments by name); `key`
        and `biz_key` name fields of it. The method ends its transaction itself. It commits the
        message by returning, or returns a LocalOutcome; when it raises, a check finds out.
        """
        transaction = LocalTransactionSpec(
            event_type=event_type,
            payload=payload,
            key=key,
            biz_key=biz_key,
            operation=operation,
            headers=headers,
            delay=delay,
            immunity=immunity,
            rollback_on=rollback_on,
        )
        return self.half_messages.transactional(transaction, payload_type=payload_type, topic=topic)

    def checks(self, event_type: str) -> Callable[[C], C]:
        """Declare the check of local transactions whose half message stayed open.

        It is called as `function(event)`, in any relay of the service, and returns a LocalOutcome.
        """
        return self.half_messages.checks(event_type)

    def barrier(
        self, *event_types: str, engine: Engine | None = None, schema: str | None = None
    ) -> None:
        """Declare that a barrier in the local transactions' own database knows their outcome.

        It is in the service's database; or in that of an `engine`, where `shieldtx db upgrade` has
        made the tables in its `schema`. Each local transaction of these types calls `guard`.
        """
        self.half_messages.barrier(*event_types, engine=engine, schema=schema)

    # --- what runs it -----------------------------------------------------------------------------

    def build_relay(self, name: str | None = None) -> Relay:
        """Build a relay; a `name` of its own, among restarts too, is made up by default."""
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
        """Build the consumer of a declared group; raises ConfigurationError for an unknown one.

        Its passes begin nothing more once `stopping` is true.
        """
        return builders.build_consumer(
            self.settings,
            group=group,
            store=self.stores.inbox(),
            declarations=self._declarations,
            outbox=self.outbox,
            broker=self.broker,
            hooks=self.hooks,
            stopping=stopping,
        )

    def build_retention(self) -> RetentionService:
        """Build the purge of this service's tables, and of its barriers in other databases."""
        return builders.build_retention(
            self.settings, connections=self._connections, half_messages=self.half_messages
        )

    # --- what it has ------------------------------------------------------------------------------

    @property
    def event_types(self) -> EventTypeRegistry:
        """The event types that the service has declared."""
        return self._declarations.event_types

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """The consumer groups that the service has declared, by name."""
        return self._declarations.groups

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted."""
        return self._declarations.topics()

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a declared group reads."""
        return self._declarations.topics_of(group)

    def group_id(self, group: str) -> str:
        """Return the broker's name of a consumer group."""
        return self._declarations.group_id(group)

    def handled_by(self, group: str) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds that a group has handlers for in this application."""
        return self._declarations.handled_by(group)

    @property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return self._connections.tables

    @property
    def schema(self) -> Schema:
        """The maker and checker of the tables."""
        return self.stores.schema()

    @property
    def engine(self) -> Engine:
        """The connections of relay and consumers; services write through sessions of their own."""
        return self._connections.engine

    @property
    def connections(self) -> Connections:
        """The engines of this service, and the hints that wake its relays."""
        return self._connections

    @cached_property
    def broker(self) -> Broker:
        """The broker of the settings."""
        if self._broker is not None:
            return self._broker
        from shieldtx.brokers.kafka.broker import KafkaBroker  # noqa: PLC0415  writers need no Kafka client

        return KafkaBroker.from_settings(self.settings)

    def close(self) -> None:
        """Close the connections that this object opened for itself."""
        self.tracer.close()
        self._connections.close()
