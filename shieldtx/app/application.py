"""ShieldTx: the entry point of a service: declares, writes events, builds relay and consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from shieldtx.app import builders
from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.event_catalog import event_catalog
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.replays import ParkedCheck
from shieldtx.app.stores import Stores
from shieldtx.catalog.catalog import Catalog
from shieldtx.consumer.consumer import Consumer
from shieldtx.consumer.handler_types import HandlerFunction
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.callables import check_callable
from shieldtx.domain.event_types import EventType, EventTypeRegistry, OnBacklog
from shieldtx.domain.events import NO_HEADERS, Event
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.schema_versions import Upcaster
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
U = TypeVar("U", bound=Upcaster)
C = TypeVar("C", bound=Callable[[Event], LocalOutcome | Awaitable[LocalOutcome]])


class ShieldTx:
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

    # --- events -----------------------------------------------------------------------------------

    def declare(
        self,
        event_type: str,
        *,
        payload: Any = None,
        version: int | None = None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        backlog_limit: int | None = None,
        on_backlog: OnBacklog | str | None = None,
    ) -> EventType:
        """Declare an event type that is written with `outbox.add`, and return it.

        `payload` is the type of the payload (default: any JSON value). Its events carry `version`,
        which grows with each incompatible change of that type. `topic` is the logical topic
        (default: the type's name), and `retry` limits the attempts to publish. Give types one
        topic if the order between them matters. `backlog_limit` is how many events of the topic may
        wait to be sent; `on_backlog` is "refuse", "warn" or "ignore". Raises ConfigurationError for
        a name or a type that cannot be used, and for a second declaration.
        """
        return self.event_types.declare(
            event_type,
            payload=payload,
            version=version,
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
        version: int | None = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: DueAt[timedelta] = None,
        at: DueAt[datetime] = None,
        level: DueAt[int] = None,
        retry: RetryPolicy | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that publishes a method's return value in its caller's transaction.

        `key` and `biz_key` are names of payload fields, or functions of the payload. One of `delay`
        (timedelta), `at` (aware datetime) and `level` (1 to 18) chooses the due time, as a value or
        in the same way. `payload` is the type of the payload, if the return annotation does not
        define it, and `version` the version of that type. Declare an event type with `declare`
        first if several methods publish it. Raises ConfigurationError for bad arguments.
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
            self.outbox, publication, payload=payload, version=version, topic=topic, retry=retry
        )

    def upcasts(self, event_type: str, *, from_version: int) -> Callable[[U], U]:
        """Return a decorator that declares how a payload of a version becomes one of the next.

        shieldtx calls the function as `function(payload)` with JSON data (dicts, lists, texts,
        numbers) and passes its result on, for events of `from_version` that this service reads:
        handlers, compensations, local rollbacks and checks. Events without a version have version
        1. Stored and sent events do not change. Raises ConfigurationError for a second upcaster of
        the version, and where the type is declared with an older version.
        """
        return self._declarations.upcasts(event_type, from_version)

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Return a decorator that declares the local rollback of an event type.

        The function undoes the business data of an event that can never be delivered. It is called
        as `function(session, event)`, in the transaction that marks the event FAILED. Raises
        ConfigurationError for a second local rollback of the type.
        """
        return self._declarations.local_rollback(event_type)

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, on which handlers are declared."""
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
        """Return a block around a local transaction outside of the outbox's own database.

        `with shield.half("orders.placed", order, key=order.id) as tx:` prepares the message first,
        and does not enter the block if the preparation fails. The end of the block commits the
        message. An error of `rollback_on` discards the message, and after any other error a check
        finds the outcome.
        """
        return self.half_messages.half(event_type, payload, rollback_on=rollback_on, **fields)

    def half_prepare(
        self, event_type: str, payload: Any = None, **fields: Unpack[EventFields]
    ) -> UUID:
        """Prepare a half message and return its id, for `half_commit` or `half_rollback`.

        Raises EventRefused, UnknownEventType, and errors of the database: after an error, do not
        run the local transaction.
        """
        return self.half_messages.prepare(event_type, payload, **fields)

    def half_commit(self, *event_ids: UUID) -> None:
        """Send half messages whose local transaction committed.

        Raises IllegalTransition for messages that were rolled back, wait for an operator or do not
        exist; TransactionRefused where a declared barrier does not confirm the commit.
        """
        self.half_messages.commit(*event_ids)

    def half_rollback(self, *event_ids: UUID) -> None:
        """Discard half messages whose local transaction rolled back.

        Raises IllegalTransition for messages that were committed, wait for an operator or do not
        exist; TransactionRefused where a declared barrier does not confirm the rollback.
        """
        self.half_messages.rollback(*event_ids)

    def guard(self, transaction: CallersTransaction, *event_ids: UUID) -> None:
        """Guard a local transaction with the half messages of the block around this call.

        A decorated method uses the messages of all its decorators, and not those of its callers.
        Outside of blocks, pass the `event_ids` that `half_prepare` returned. Raises
        TransactionRefused in a nested block, where the block's own `guard` must be called.
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
        version: int | None = None,
        topic: str | None = None,
        operation: Operation = Operation.INSERT,
        headers: Mapping[str, str] = NO_HEADERS,
        delay: timedelta | None = None,
        immunity: timedelta | None = None,
        rollback_on: tuple[type[BaseException], ...] = (),
    ) -> Callable[[F], F]:
        """Return a decorator that prepares a half message before the method, a local transaction.

        `payload` is the name of the argument to send, or a function of all arguments by name. `key`
        and `biz_key` are names of its fields, or functions of it. `delay` counts from the commit,
        and `immunity` is the time until the first check. The method ends its transaction itself.
        Its return commits the message, unless it returns another LocalOutcome; after an exception,
        a check finds the outcome, except for `rollback_on`.
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
        return self.half_messages.transactional(
            transaction, payload_type=payload_type, version=version, topic=topic
        )

    def checks(self, event_type: str) -> Callable[[C], C]:
        """Return a decorator that declares the checker of an event type's local transactions.

        The function is called as `function(event)`, in any relay of the service, if the outcome of
        a half message is unknown. It returns a LocalOutcome. Raises ConfigurationError for a second
        checker.
        """
        return self.half_messages.checks(event_type)

    def barrier(
        self, *event_types: str, engine: Engine | None = None, schema: str | None = None
    ) -> None:
        """Declare that a barrier in the local transactions' own database proves their outcome.

        The barrier is in the service's database by default. An `engine` names another database,
        where `shieldtx db upgrade` has created the tables in `schema`. Each local transaction of
        these types must call `guard`. Raises ConfigurationError for a type that has a checker or a
        barrier.
        """
        self.half_messages.barrier(*event_types, engine=engine, schema=schema)

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

    @property
    def event_types(self) -> EventTypeRegistry:
        """The event types that the service has declared."""
        return self._declarations.event_types

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
