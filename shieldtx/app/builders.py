"""Builds the services of a process with their ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial

from sqlalchemy import Engine

from shieldtx._process_tokens import name_with_token, owner_has_died
from shieldtx.app.connections import Connections
from shieldtx.app.declarations import Declarations
from shieldtx.app.half_messages import HalfMessageWiring
from shieldtx.app.wiring import Wiring
from shieldtx.brokers import signing
from shieldtx.consumer.attempt_log import AttemptLog
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.compensation import KeptFor
from shieldtx.consumer.consumer import Consumer, ConsumerSettings
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.fetcher import BlockingFetcher, PrefetchingFetcher
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.consumer.lanes import OneLane
from shieldtx.errors import ConfigurationError
from shieldtx.hooks.hooks import Hooks
from shieldtx.ports.broker import Broker
from shieldtx.ports.lanes import Lanes
from shieldtx.ports.meters import AttemptMeter
from shieldtx.ports.relay import LeaseStore, RelayStore
from shieldtx.relay.relay import CLAIMS_AT_A_TIME, Relay
from shieldtx.relay.settings import RelaySettings
from shieldtx.retention import Retention, RetentionService
from shieldtx.scheduling.lanes import LoopLanes, ThreadLanes
from shieldtx.settings.settings import Settings
from shieldtx.store.relay_store import SqlRelayStore
from shieldtx.store.retention import SqlRetentionStore
from shieldtx.store.shard_leases import SqlLeaseStore
from shieldtx.store.tables import tables


def build_relay(
    wiring: Wiring,
    *,
    declarations: Declarations,
    broker: Broker,
    hooks: Hooks,
    name: str,
) -> Relay:
    """Build a relay of this `name`, which no other relay or restart may have."""
    declarations.check_payload_types()
    s, connections = wiring.settings, wiring.connections
    lanes, engine = _lanes_of(connections, 1, has_coroutines=declarations.has_coroutine_rollbacks)
    store: RelayStore = SqlRelayStore(
        connections.relay_engine,
        connections.tables,
        source=s.source,
        of_local_rollbacks=engine,
        run_local_rollback=lambda call: lanes.run([call])[0],
        batch_bytes=max(1, s.relay_batch_bytes // CLAIMS_AT_A_TIME),
    )
    leases: LeaseStore = SqlLeaseStore(
        connections.relay_engine,
        connections.tables,
        shards=s.shards,
        has_died=owner_has_died if s.early_takeover else _never,
    )
    publisher = broker.publisher()
    if (metrics := wiring.metrics.of_worker()) is not None:
        store, leases, publisher = metrics.of_relay(store, leases, publisher)
    return Relay(
        store=store,
        leases=leases,
        publisher=publisher,
        encode=partial(signing.encode, prefix=s.topic_prefix, keys=s.signing_keys),
        settings=RelaySettings(
            name=name,
            batch_size=s.relay_batch_size,
            lease=s.relay_lease,
            send_timeout=s.relay_send_timeout,
        ),
        retry_of=declarations.retry_of,
        local_rollbacks=declarations.local_rollbacks,
        knows=declarations.knows,
        hooks=hooks,
    )


def build_consumer(
    wiring: Wiring,
    *,
    group: str,
    declarations: Declarations,
    broker: Broker,
    hooks: Hooks,
    stopping: Callable[[], bool],
) -> Consumer:
    """Build the consumer of a declared group; raises ConfigurationError for an unknown group."""
    s, connections, stores = wiring.settings, wiring.connections, wiring.stores
    declared = declarations.group(group)
    declarations.check_payload_types()
    # SQLite has one writer at a time.
    count = s.consumer_concurrency if connections.has_server else 1
    if count > 1 and declared.has_coroutines:
        _require_coroutines(declared)
    lanes, engine = _lanes_of(connections, count, has_coroutines=declared.has_coroutines)
    store = stores.inbox()
    log = AttemptLog(group)
    breaker = Breaker(
        group=group,
        pauses=stores.pauses(),
        length=s.consumer_breaker,
        first_probe=s.consumer_probe_interval,
    )
    of_handlers = store if engine is connections.engine else stores.inbox(engine)
    subscriber = broker.subscriber(declarations.group_id(group), declarations.topics_of(group))
    meter: AttemptMeter | None = None
    if (metrics := wiring.metrics.of_worker()) is not None:
        subscriber, meter = metrics.of_consumer(subscriber, group, topic_prefix=s.topic_prefix)
    fetcher = BlockingFetcher(
        group=declared,
        subscriber=subscriber,
        decode=partial(signing.decode, prefix=s.topic_prefix, keys=s.signing_keys, reader=s.source),
    )
    return Consumer(
        group=declared,
        fetcher=PrefetchingFetcher(fetcher, group=group),
        store=store,
        processors=[
            EventProcessor(
                group=declared,
                store=of_handlers,
                outbox=wiring.outbox,
                hooks=hooks,
                kept_for=KeptFor(inbox=s.retention_inbox, outbox=s.retention_outbox),
                handled_elsewhere=partial(declarations.is_handled_elsewhere, group),
                log=log,
                breaker=breaker,
                meter=meter,
            )
            for _ in range(lanes.count)
        ],
        lanes=lanes,
        settings=ConsumerSettings(
            batch_size=s.consumer_batch_size,
            batch_bytes=s.consumer_batch_bytes,
            poll_timeout=s.consumer_poll_timeout,
            pending_limit=s.consumer_pending_limit,
            topic_prefix=s.topic_prefix,
        ),
        stopping=stopping,
    )


def _require_coroutines(group: ConsumerGroup) -> None:
    """Raise ConfigurationError where a plain handler would stop the event loop for the others."""
    if plain := group.plain_types():
        raise ConfigurationError(
            f"consumer group {group.name!r} has coroutine handlers, and plain ones for "
            f"{', '.join(plain)}: with SHIELDTX_CONSUMER_CONCURRENCY above 1 a plain function "
            "would stop all the others while it waits. Make it a coroutine function, or put it "
            "into a group of its own"
        )


def _lanes_of(
    connections: Connections, count: int, *, has_coroutines: bool
) -> tuple[Lanes, Engine]:
    """Return where functions of the application run, and the engine of their transactions."""
    if has_coroutines:
        return LoopLanes(count, run=connections.run_on_loop), connections.coroutine_engine
    if count > 1:
        return ThreadLanes(count, name="shieldtx-handlers"), connections.handler_engine
    return OneLane(), connections.engine


def build_retention(
    settings: Settings, *, connections: Connections, half_messages: HalfMessageWiring
) -> RetentionService:
    """Build the purge of a service's tables, and of its barriers in other databases."""
    s = settings
    store = SqlRetentionStore(connections.engine, connections.tables)
    elsewhere = half_messages.other_barriers()
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


def _never(_: str) -> bool:
    return False


def worker_name() -> str:
    """Return a name that no other process or restart has: host, process id, and its token."""
    return name_with_token(f"{socket.gethostname()}-{os.getpid()}")
