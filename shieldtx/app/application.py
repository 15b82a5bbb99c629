"""ShieldTx: what a service declares, wired to its database and broker."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property, partial
from typing import Self

from sqlalchemy import Engine

from shieldtx.app.declarations import Declarations
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.brokers import signing
from shieldtx.consumer.consumer import Consumer, ConsumerSettings
from shieldtx.consumer.event_processor import Inbox
from shieldtx.consumer.fetcher import DirectIntake, ReadAheadIntake
from shieldtx.domain.callables import check_callable
from shieldtx.domain.events import new_event_id
from shieldtx.hooks.hooks import Hooks
from shieldtx.outbox.delayed_events import DelayedEvents
from shieldtx.outbox.outbox import Outbox
from shieldtx.ports.broker import Broker
from shieldtx.relay.relay import CLAIMS_AT_A_TIME, Relay, RelaySettings
from shieldtx.retention import Retention, RetentionService
from shieldtx.settings.settings import Settings
from shieldtx.store.connections import MAX_CONNECTIONS, Pooler, open_engine, read_committed_view
from shieldtx.store.dead_letters import SqlDeadLetters
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.discards import SqlDiscards
from shieldtx.store.half_message_admin import SqlHalfMessageAdmin
from shieldtx.store.inbox_store import SqlInboxStore
from shieldtx.store.notify import Listener, Notifier
from shieldtx.store.outbox_writer import SqlOutboxWriter
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.schema import Schema
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.status import SqlLimitStatus, SqlStatus
from shieldtx.store.tables import Tables, tables
from shieldtx.store.trace import SqlTraceStore
from shieldtx.tracing.recorder import TraceRecorder

log = logging.getLogger(__name__)


class ShieldTx(Declarations):
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
        check_callable(traceparent, what="ShieldTx(traceparent=...)", call="traceparent()")
        super().__init__(settings)
        self.hooks = Hooks()
        """Where an application registers what is called around each send and each attempt."""
        self._engine = engine
        self._broker = broker
        self.outbox = Outbox(
            source=settings.source,
            event_types=self.event_types,
            writer=SqlOutboxWriter(self.tables, shards=settings.shards),
            traceparent=traceparent,
            after_commit=self._hint,
        )
        self.delayed = DelayedEvents(outbox=self.outbox, store=SqlDelayedEventStore(self.tables))
        self.halves = halves = HalfMessageWiring(
            settings,
            event_types=self.event_types,
            engine=lambda: self.engine,
            checks_engine=lambda: self.checks_engine,
            to_envelope=self.outbox.to_envelope,
            after_commit=self._hint,
        )
        # Half messages, part of this object's own face.
        self.half, self.transactional, self.guard = halves.half, halves.transactional, halves.guard
        self.checks, self.barrier = halves.checks, halves.barrier
        self.half_prepare, self.half_commit = halves.prepare, halves.commit
        self.half_rollback = halves.rollback
        self.tracer = TraceRecorder(self.trace_store)
        if settings.trace:
            self.tracer.attach(self.hooks)

    @classmethod
    def from_env(cls) -> Self:
        """Read the settings from `SHIELDTX_*`; raises ConfigurationError for those at fault."""
        return cls(Settings.from_env())

    @cached_property
    def tables(self) -> Tables:
        """The tables in the configured schema."""
        return tables(self.settings.database_schema)

    @cached_property
    def engine(self) -> Engine:
        """The connections of relay and consumers; services write through sessions of their own."""
        if self._engine is not None:
            return read_committed_view(self._engine)
        return self._open_engine()

    @cached_property
    def checks_engine(self) -> Engine:
        """The connections of a relay's checks of half messages, which wait for other transactions.

        A pool of their own: whatever they wait for, events go out meanwhile. An engine that was
        given to this object serves them too.
        """
        if self._engine is not None or not self._has_server:
            return self.engine
        return self._open_engine(most=MAX_CONNECTIONS + self.settings.half_check_threads)

    def _open_engine(self, *, most: int = MAX_CONNECTIONS) -> Engine:
        longest = max(
            [h.lease for group in self.groups.values() for h in group.handlers()],
            default=timedelta(minutes=1),
        )
        s = self.settings
        idle = max(longest, s.relay_lease)
        return open_engine(s.url, idle=idle, pooler=s.database_pooler, most=most)

    @cached_property
    def broker(self) -> Broker:
        """The broker of the settings."""
        if self._broker is not None:
            return self._broker
        from shieldtx.brokers.kafka.broker import KafkaBroker  # noqa: PLC0415  writers need no Kafka client

        return KafkaBroker.from_settings(self.settings)

    @property
    def schema(self) -> Schema:
        """The maker and checker of the tables."""
        return Schema(
            self.engine, schema=self.settings.database_schema, shards=self.settings.shards
        )

    def relay(self, name: str | None = None) -> Relay:
        """Build a relay; a `name` of its own, among restarts too, is made up by default."""
        s = self.settings
        return Relay(
            store=SqlRelayStore(
                self.engine,
                self.tables,
                source=s.source,
                batch_bytes=max(1, s.relay_batch_bytes // CLAIMS_AT_A_TIME),
            ),
            leases=SqlLeaseStore(self.engine, self.tables, shards=s.shards),
            publisher=self.broker.publisher(),
            encode=partial(signing.encode, prefix=s.topic_prefix, keys=s.signing_keys),
            settings=RelaySettings(
                name=name or worker_name(),
                batch_size=s.relay_batch_size,
                lease=s.relay_lease,
                send_timeout=s.relay_send_timeout,
            ),
            retry_of=self._retry_of,
            local_rollbacks=self._local_rollbacks,
            knows=self._knows,
            hooks=self.hooks,
        )

    def build_consumer(
        self, group: str, *, stopping: Callable[[], bool] = lambda: False
    ) -> Consumer:
        """Build a worker of a declared group; raises ConfigurationError for an unknown one."""
        declared = self._declared(group)
        intake = DirectIntake(
            group=declared,
            subscriber=self.broker.subscriber(self.group_id(group), self.topics_of(group)),
            decode=partial(
                signing.decode,
                prefix=self.settings.topic_prefix,
                keys=self.settings.signing_keys,
            ),
        )
        store = self.inbox_store()
        return Consumer(
            group=declared,
            intake=ReadAheadIntake(intake),
            store=store,
            inbox=Inbox(
                group=declared,
                store=store,
                outbox=self.outbox,
                hooks=self.hooks,
                kept_for=self.settings.retention_inbox,
            ),
            settings=ConsumerSettings(
                batch_size=self.settings.consumer_batch_size,
                batch_bytes=self.settings.consumer_batch_bytes,
                pending_limit=self.settings.consumer_pending_limit,
                topic_prefix=self.settings.topic_prefix,
            ),
            stopping=stopping,
        )

    def housekeeping(self) -> RetentionService:
        """Build the purge of this service's tables, and of its barriers elsewhere."""
        s = self.settings
        store = SqlRetentionStore(self.engine, self.tables)
        elsewhere = self.halves.other_barriers()
        return RetentionService(
            store=store,
            retention=Retention(
                outbox=s.retention_outbox,
                inbox=s.retention_inbox,
                barrier=s.retention_barrier,
                parked=s.retention_parked or None,
                audit=s.retention_audit or None,
                trace=s.retention_trace,
                trace_rows=s.trace_rows,
            ),
            barriers=[
                store,
                *(SqlRetentionStore(engine, tables(schema)) for engine, schema in elsewhere),
            ],
        )

    def overview(self) -> SqlStatus:
        """Build the reader of how this service stands."""
        return SqlStatus(self.engine, self.tables)

    def inbox_store(self) -> SqlInboxStore:
        """Build the consumer's side of the inbox table."""
        most = self.settings.consumer_batch_bytes
        return SqlInboxStore(self.engine, self.tables, batch_bytes=most)

    def limits(self) -> SqlLimitStatus:
        """Build the reader of what is at its limit."""
        return SqlLimitStatus(self.engine, self.tables)

    def trace_store(self) -> SqlTraceStore:
        """Build what keeps the trace, and tells what the tables know of an event."""
        return SqlTraceStore(self.engine, self.tables)

    def dead_letters(self) -> SqlDeadLetters:
        """Build what finds and replays the events of this service that wait for a person."""
        return SqlDeadLetters(self.engine, self.tables)

    def discards(self) -> SqlDiscards:
        """Build what discards the rows of this service that will never be handled."""
        return SqlDiscards(self.engine, self.tables)

    def half_desk(self) -> SqlHalfMessageAdmin:
        """Build what shows half messages to a person, and ends them in the person's name."""
        return SqlHalfMessageAdmin(
            self.engine,
            self.tables,
            barrier_of=self.halves.barrier_to_ask,
            barrier_retention=self.settings.retention_barrier,
        )

    def listener(self, wake: Callable[[], None]) -> Listener | None:
        """Build the listener for wake-up hints; None where there are none.

        A pooler of transactions keeps no session that could listen: a relay behind it only polls.
        """
        if not self._hints:
            return None
        if self.settings.database_pooler is Pooler.TRANSACTION:
            log.info("no wake-up hints behind a pooler of transactions, polling instead")
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
        if "checks_engine" in opened and self._engine is None:
            self.checks_engine.dispose()

    @cached_property
    def _has_server(self) -> bool:
        return self.settings.url.get_backend_name() == "postgresql"

    @cached_property
    def _hints(self) -> bool:
        return self.settings.relay_wakeup and self._has_server

    @cached_property
    def _notifier(self) -> Notifier:
        return Notifier(self.engine, self.settings.database_schema)

    def _hint(self) -> None:
        if self._hints:
            self._notifier.hint()


def worker_name() -> str:
    """Make a name that no other process or restart has: host, process, and a part of a UUID."""
    return f"{socket.gethostname()}-{os.getpid()}-{new_event_id().hex[-8:]}"
