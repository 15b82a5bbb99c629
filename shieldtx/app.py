"""ShieldTx: what a service declares, wired to its database and broker."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Self, TypeVar

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from shieldtx.brokers import signature
from shieldtx.catalog import Catalog, EventType, Limits, OnBacklog
from shieldtx.config import Settings
from shieldtx.consumer import Consumer, ConsumerSettings
from shieldtx.delayed import Delayed
from shieldtx.errors import ConfigurationError
from shieldtx.events import NO_HEADERS, Envelope, new_event_id, physical_topic
from shieldtx.halves import Halves
from shieldtx.handlers import ConsumerGroup, HandlerFunction
from shieldtx.hooks import Hooks
from shieldtx.housekeeping import Housekeeping, Retention
from shieldtx.inbox import Inbox
from shieldtx.intake import DirectIntake, ReadAheadIntake
from shieldtx.outbox import Outbox
from shieldtx.payloads import decode_payload
from shieldtx.ports import Broker
from shieldtx.publishing import DueAt, Part, Publication, payload_type_of, publishing
from shieldtx.relay import LocalRollback, Relay, RelaySettings
from shieldtx.retry import RetryPolicy
from shieldtx.states import Operation, TxKind
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.delayed_store import SqlDelayedStore
from shieldtx.store.dialects import dialect_of
from shieldtx.store.half_desk import SqlHalfDesk
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.lease_store import SqlLeaseStore
from shieldtx.store.limits import SqlLimits
from shieldtx.store.outbox_store import SqlOutboxStore, SqlOutboxWriter
from shieldtx.store.overview import SqlOverview
from shieldtx.store.purge_store import SqlPurgeStore
from shieldtx.store.schema import Schema
from shieldtx.store.tables import Tables, tables
from shieldtx.store.trace_store import SqlTraceStore
from shieldtx.store.wakeup import Listener, Notifier
from shieldtx.tracing import Tracer

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=HandlerFunction)


class ShieldTx:
    """The one object a service makes: it declares events and handlers and builds the workers.

    Making it connects to nothing. `engine` and `broker` stand in for those of the settings, in
    tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine | None = None,
        broker: Broker | None = None,
        traceparent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.catalog = Catalog(
            Limits(payload=settings.max_payload_bytes),
            backlog_limit=settings.backlog_limit,
            on_backlog=settings.on_backlog,
        )
        self.groups: dict[str, ConsumerGroup] = {}
        self.hooks = Hooks()
        """Where an application registers what is called around each send and each attempt."""
        self._engine = engine
        self._broker = broker
        self._local_rollbacks: dict[str, LocalRollback] = {}
        self.outbox = Outbox(
            source=settings.source,
            catalog=self.catalog,
            writer=SqlOutboxWriter(self.tables, shards=settings.shards),
            traceparent=traceparent,
            after_commit=self._hint,
        )
        self.delayed = Delayed(outbox=self.outbox, store=SqlDelayedStore(self.tables))
        self.halves = halves = Halves(
            settings,
            catalog=self.catalog,
            engine=lambda: self.engine,
            seal=self.outbox.seal,
            after_commit=self._hint,
        )
        # Half messages, part of this object's own face.
        self.half, self.transactional, self.guard = halves.half, halves.transactional, halves.guard
        self.checks, self.barrier = halves.checks, halves.barrier
        self.half_prepare, self.half_commit = halves.prepare, halves.commit
        self.half_rollback = halves.rollback
        self.tracer = Tracer(self.trace_store)
        if settings.trace:
            self.tracer.attach(self.hooks)

    @classmethod
    def from_env(cls) -> Self:
        """Read the settings from `SHIELDTX_*`; raises ConfigurationError for those at fault."""
        return cls(Settings.from_env())

    # --- what a service declares ------------------------------------------------------------------

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
        """Declare an event type that is written with `outbox.add`; see Catalog.declare."""
        return self.catalog.declare(
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
        key: Part = None,
        biz_key: Part = None,
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

        def decorate(function: F) -> F:
            if self.catalog.find(event_type) is None:
                kind = payload if payload is not None else payload_type_of(function)
                self.declare(event_type, payload=kind, topic=topic, retry=retry)
            elif any(given is not None for given in (payload, topic, retry)):
                raise ConfigurationError(
                    f"event type {event_type!r} is declared already: give its payload, topic and "
                    "retry once, to shield.declare, and leave them out here"
                )
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
            return publishing(self.outbox, publication)(function)

        return decorate

    def local_rollback(self, event_type: str) -> Callable[[H], H]:
        """Declare what undoes the business data of an event that can never be delivered.

        It is called as `function(session, event)` in the transaction that marks the event FAILED.
        """

        def decorate(function: H) -> H:
            if event_type in self._local_rollbacks:
                raise ConfigurationError(f"event type {event_type!r} has two local rollbacks")
            self._local_rollbacks[event_type] = partial(self._roll_back_locally, function)
            return function

        return decorate

    def consumer(self, group: str) -> ConsumerGroup:
        """Return the consumer group of this name, to declare its handlers on."""
        if group not in self.groups:
            self.groups[group] = ConsumerGroup(group, self.catalog)
        return self.groups[group]

    # --- what runs it -----------------------------------------------------------------------------

    @cached_property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return tables(self.settings.database_schema)

    @cached_property
    def engine(self) -> Engine:
        """The connections of relay and consumers; services write through sessions of their own."""
        if self._engine is not None:
            return self._engine
        url = self.settings.url
        longest = max(
            [h.lease for group in self.groups.values() for h in group.handlers()],
            default=timedelta(minutes=1),
        )
        idle = max(longest, self.settings.relay_lease)
        return create_engine(
            url,
            connect_args=dialect_of(url.get_dialect()()).connect_args(url, idle),
            # Errors of handlers' statements go into logs and tables, what they were given does not.
            hide_parameters=True,
        )

    @cached_property
    def broker(self) -> Broker:
        """The broker of the settings."""
        if self._broker is not None:
            return self._broker
        from shieldtx.brokers.kafka import KafkaBroker  # noqa: PLC0415  writers need no Kafka client

        return KafkaBroker.from_settings(self.settings)

    @property
    def schema(self) -> Schema:
        """The maker and checker of the tables."""
        return Schema(
            self.engine, schema=self.settings.database_schema, shards=self.settings.shards
        )

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted."""
        prefix = self.settings.topic_prefix
        named = {(t.topic, kind) for t in self.catalog for kind in TxKind}
        for group in self.groups.values():
            # A group that gives up writes to the rollback topic of what it reads.
            named |= {(topic, kind) for topic, _ in group.subscriptions() for kind in TxKind}
        return sorted(physical_topic(prefix, topic, kind) for topic, kind in named)

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a declared group reads."""
        subscriptions = self._declared(group).subscriptions()
        return [physical_topic(self.settings.topic_prefix, t, kind) for t, kind in subscriptions]

    def relay(self, name: str | None = None) -> Relay:
        """Build a relay; a `name` of its own, among restarts too, is made up by default."""
        s = self.settings
        return Relay(
            store=SqlOutboxStore(self.engine, self.tables),
            leases=SqlLeaseStore(self.engine, self.tables),
            publisher=self.broker.publisher(),
            encode=partial(signature.encode, prefix=s.topic_prefix, keys=s.signing_keys),
            settings=RelaySettings(
                name=name or worker_name(),
                batch_size=s.relay_batch_size,
                lease=s.relay_lease,
                send_timeout=s.relay_send_timeout,
            ),
            retry_of=self._retry_of,
            local_rollbacks=self._local_rollbacks,
            hooks=self.hooks,
        )

    def consumer_worker(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        """Build a worker of a declared group; raises ConfigurationError for an unknown one."""
        declared = self._declared(group)
        intake = DirectIntake(
            group=declared,
            subscriber=self.broker.subscriber(group, self.topics_of(group)),
            decode=partial(
                signature.decode,
                prefix=self.settings.topic_prefix,
                keys=self.settings.signing_keys,
            ),
        )
        store = SqlInboxStore(self.engine, self.tables)
        return Consumer(
            group=declared,
            intake=ReadAheadIntake(intake),
            store=store,
            inbox=Inbox(group=declared, store=store, outbox=self.outbox, hooks=self.hooks),
            settings=ConsumerSettings(
                batch_size=self.settings.consumer_batch_size,
                pending_limit=self.settings.consumer_pending_limit,
                topic_prefix=self.settings.topic_prefix,
            ),
            stopping=stopping,
        )

    def housekeeping(self) -> Housekeeping:
        """Build the purge of this service's tables, and of its barriers elsewhere."""
        s = self.settings
        store = SqlPurgeStore(self.engine, self.tables)
        elsewhere = self.halves.other_barriers()
        return Housekeeping(
            store=store,
            retention=Retention(
                outbox=s.retention_outbox,
                inbox=s.retention_inbox,
                barrier=s.retention_barrier,
                trace=s.retention_trace,
                trace_rows=s.trace_rows,
            ),
            barriers=[
                store,
                *(SqlPurgeStore(engine, tables(schema)) for engine, schema in elsewhere),
            ],
        )

    def overview(self) -> SqlOverview:
        """Build the reader of how this service stands."""
        return SqlOverview(self.engine, self.tables)

    def limits(self) -> SqlLimits:
        """Build the reader of what is at its limit."""
        return SqlLimits(self.engine, self.tables)

    def trace_store(self) -> SqlTraceStore:
        """Build what keeps the trace, and tells what the tables know of an event."""
        return SqlTraceStore(self.engine, self.tables)

    def dead_letters(self) -> SqlDeadLetters:
        """Build what finds and replays the events of this service that wait for a person."""
        return SqlDeadLetters(self.engine, self.tables)

    def half_desk(self) -> SqlHalfDesk:
        """Build what shows half messages to a person, and ends them in the person's name."""
        return SqlHalfDesk(self.engine, self.tables)

    def listener(self, wake: Callable[[], None]) -> Listener | None:
        """Build the listener for wake-up hints; None where there are none."""
        if not self._hints:
            return None
        return Listener(self.engine, self.settings.database_schema, wake)

    def close(self) -> None:
        """Let go of the connections that this object opened for itself."""
        self.tracer.close()
        opened = vars(self)
        if "_notifier" in opened:
            self._notifier.close()
        if "engine" in opened and self._engine is None:
            self.engine.dispose()

    def _declared(self, group: str) -> ConsumerGroup:
        declared = self.groups.get(group)
        if declared is None or not declared.subscriptions():
            known = ", ".join(sorted(self.groups)) or "none"
            raise ConfigurationError(
                f"consumer group {group!r} has no handlers in this application (groups: {known})"
            )
        return declared

    @cached_property
    def _hints(self) -> bool:
        return self.settings.relay_wakeup and self.settings.url.get_backend_name() == "postgresql"

    @cached_property
    def _notifier(self) -> Notifier:
        return Notifier(self.engine, self.settings.database_schema)

    def _hint(self) -> None:
        if self._hints:
            self._notifier.hint()

    def _retry_of(self, event_type: str) -> RetryPolicy:
        # A rollback event is of a type that its upstream declared, not this service.
        declared = self.catalog.find(event_type)
        return RetryPolicy() if declared is None else declared.retry

    def _roll_back_locally(
        self, function: HandlerFunction, session: Session, envelope: Envelope
    ) -> None:
        payload = decode_payload(self.catalog.get(envelope.type).payload, envelope.payload)
        function(session, envelope.opened(payload))


def worker_name() -> str:
    """Make a name that no other process or restart has: host, process, and a part of a UUID."""
    return f"{socket.gethostname()}-{os.getpid()}-{new_event_id().hex[-8:]}"
