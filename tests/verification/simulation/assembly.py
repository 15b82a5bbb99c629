"""The processes of a world: the real services on ports that can be interrupted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shieldtx.brokers import cloudevents, decoding
from shieldtx.consumer.breaker import Breaker
from shieldtx.consumer.consumer import Consumer, ConsumerSettings
from shieldtx.consumer.event_processor import EventProcessor
from shieldtx.consumer.fetcher import BlockingFetcher, PrefetchingFetcher
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.event_types import EventTypeRegistry
from shieldtx.domain.events import Envelope, physical_topic
from shieldtx.domain.retry import RetryPolicy
from shieldtx.domain.states import TxKind
from shieldtx.ports.broker import ReceivedRecord, Record
from shieldtx.relay.relay import Relay
from shieldtx.relay.settings import RelaySettings
from shieldtx.retention import Retention, RetentionService
from shieldtx.testing.memory_cluster import Group
from tests.verification.simulation.banks import TYPE, groups
from tests.verification.simulation.broker import Member, MemoryPublisher, MemorySubscriber
from tests.verification.simulation.inbox import MemoryInboxStore
from tests.verification.simulation.lanes import SimulatedLanes
from tests.verification.simulation.outbox import MemoryLeaseStore, MemoryOutbox, MemoryOutboxStore
from tests.verification.simulation.pauses import AnsweredPauses, MemoryPauseStore
from tests.verification.simulation.processes import (
    Beside,
    Interrupted,
    InterruptedInbox,
    InterruptedLeases,
    InterruptedSubscriber,
    Process,
)
from tests.verification.simulation.retention import MemoryRetentionStore
from tests.verification.simulation.second_source import PREFIXES, SOURCE
from tests.verification.simulation.world_config import WorldConfig

if TYPE_CHECKING:
    from tests.verification.simulation.world import World

RELAY_LEASE = timedelta(seconds=10)
RETENTION = timedelta(hours=2)

_PAUSE = RetryPolicy(
    first=timedelta(seconds=0.5), longest=timedelta(seconds=4), jitter=0, max_attempts=5
)
_ENCODE = {s: partial(cloudevents.encode, prefix=prefix) for s, prefix in PREFIXES.items()}
_DECODE = partial(decoding.decode, prefix="")
_EVENT_TYPES = EventTypeRegistry()
_RETENTION = Retention(outbox=RETENTION, inbox=RETENTION, batch_size=3, batches_per_pass=2)


def relay(world: World, source: str, n: int) -> Process[Relay]:
    """Make the n-th relay of the service that writes as this source."""
    database, config = world.database_of(source), world.config
    retry = RetryPolicy(
        max_attempts=config.attempts,
        first=timedelta(seconds=1),
        longest=timedelta(seconds=4),
        jitter=0,
    )
    local_rollbacks = _local_rollbacks(world, source, is_old=n < config.old_relays)

    def build(process: Process[Relay]) -> Relay:
        store = MemoryOutboxStore(
            database, by=process.name, source=source, batch_bytes=config.batch_bytes
        )

        def encode(envelope: Envelope) -> Record:
            process.may_fail_at_a_call("encode")
            return _ENCODE[source](envelope)

        def retry_of(_: str) -> RetryPolicy:
            process.may_fail_inside()
            return retry

        return Relay(
            store=Interrupted(process, store),  # type: ignore[arg-type]
            leases=InterruptedLeases(  # type: ignore[arg-type]
                process,  # type: ignore[arg-type]
                MemoryLeaseStore(database, has_died=world.relay_has_died),
            ),
            publisher=MemoryPublisher(world.broker, process),
            encode=encode,
            settings=RelaySettings(
                name=process.name,
                batch_size=config.relay_batch,
                lease=RELAY_LEASE,
                send_timeout=timedelta(seconds=3),
                outage_pause=_PAUSE,
            ),
            retry_of=retry_of,
            local_rollbacks=local_rollbacks,
            knows=lambda e: e.type in local_rollbacks or e.kind is TxKind.ROLLBACK,
            clock=process.clock,
            publish_thread=Beside(process),  # type: ignore[arg-type]
        )

    number = n + (0 if source == "A" else config.relays)
    return Process(world, f"relay {source}{n}", build, **_clocks(world, number))


def _local_rollbacks(world: World, source: str, *, is_old: bool) -> dict[str, Any]:
    """Return the local rollbacks that a release declares, by type."""
    if source == SOURCE:
        return {notice.type: world.second.undo for notice in world.config.notices}
    return {TYPE: world.a.business.undo} if source == "A" and not is_old else {}


def consumers(world: World) -> list[Process[Consumer]]:
    """Make all members of all groups."""
    declared = _groups(world.config)
    of_service = [("A", "refunds"), ("B", "bank"), ("B", "fraud")]
    consumers = []
    for service, name in of_service:
        if name not in declared:
            continue
        world.broker.groups[name] = Group()
        members = 1 if name == "fraud" else world.config.consumers
        consumers += [consumer(world, service, name, n) for n in range(members)]
    return consumers


def consumer(
    world: World, service: str, name: str, n: int, *, has_removed: bool = False
) -> Process[Consumer]:
    """Make the n-th member of a group, perhaps of a release with an additional handler."""
    database, config = world.databases[service], world.config
    group = _groups(config, has_removed=has_removed)[name]
    subscriptions = _groups(config)[name].subscriptions()
    topics = [physical_topic("", event_type, kind) for event_type, kind in subscriptions]
    outbox = MemoryOutbox(
        source=service, new_id=world.next_id, event_types=_EVENT_TYPES, writer=None
    )

    def build(process: Process[Consumer]) -> Consumer:
        store = InterruptedInbox(process, MemoryInboxStore(database, by=process.name))
        member = Member(group=name, reads=topics, name=process.name)
        subscriber = MemorySubscriber(world.broker, member, batch_bytes=config.batch_bytes)

        def decode(record: ReceivedRecord) -> Envelope:
            process.may_fail_at_a_call("decode")
            return _DECODE(record)

        fetcher = BlockingFetcher(
            group=group,
            subscriber=InterruptedSubscriber(process, subscriber),  # type: ignore[arg-type]
            decode=decode,
        )
        breaker = Breaker(group=group.name)
        if config.breaker is not None:
            pauses = MemoryPauseStore(database, by=process.name, is_calm=lambda: world.is_calm)
            breaker = Breaker(
                group=group.name,
                pauses=AnsweredPauses(
                    Interrupted(process, pauses), database.pauses, process=process.name
                ),  # type: ignore[arg-type]
                length=config.breaker,
                first_probe=timedelta(seconds=1),
                clock=process.clock,
            )
        return Consumer(
            group=group,
            fetcher=PrefetchingFetcher(
                fetcher,
                group=group.name,
                fetch_thread=Beside(process),  # type: ignore[arg-type]
                clock=process.clock,
            ),
            store=store,  # type: ignore[arg-type]
            processors=[
                EventProcessor(group=group, store=store, outbox=outbox, breaker=breaker)  # type: ignore[arg-type]
                for _ in range(config.lanes)
            ],
            lanes=SimulatedLanes(process, config.lanes),
            settings=ConsumerSettings(batch_size=config.consumer_batch, poll_timeout=timedelta(0)),
            clock=process.clock,
        )

    return Process(world, f"{name} {n}", build)


def retention(world: World, service: str) -> Process[RetentionService]:
    """Make the retention of a service."""

    def build(process: Process[RetentionService]) -> RetentionService:
        store = MemoryRetentionStore(world.databases[service], wall_clock=process.wall_clock)
        return RetentionService(
            store=Interrupted(process, store),  # type: ignore[arg-type]
            retention=replace(_RETENTION, outbox=world.config.outbox_retention),
            # The database is simulated: a real pause would not let other sessions proceed.
            rest=lambda _seconds: None,
        )

    number = 0 if service == "A" else 1
    return Process(world, f"retention {service}", build, **_clocks(world, number))


def _groups(config: WorldConfig, *, has_removed: bool = False) -> dict[str, ConsumerGroup]:
    return groups(
        config.attempts,
        fraud=config.has_fraud_group,
        sharing=config.sharing,
        has_removed=has_removed,
        has_coroutines=config.has_coroutines,
        parks=config.parks,
    )


def _clocks(world: World, number: int) -> dict[str, float]:
    rates, skews = world.config.rates, world.config.skews
    return {"rate": rates[number % len(rates)], "skew": skews[number % len(skews)]}
