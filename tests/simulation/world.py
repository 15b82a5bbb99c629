"""The simulated world: two services on the real relays, consumers and housekeepers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from shieldtx.brokers import codec
from shieldtx.catalog import Catalog
from shieldtx.consumer import Consumer, ConsumerSettings
from shieldtx.events import physical_topic
from shieldtx.housekeeping import Housekeeping, Retention
from shieldtx.inbox import Inbox
from shieldtx.relay import Relay, RelaySettings
from shieldtx.retry import RetryPolicy
from shieldtx.states import INBOX, OUTBOX
from tests.simulation.banks import TOPIC, Bank, Transfer, groups
from tests.simulation.broker import (
    Broker,
    Group,
    Member,
    MemoryPublisher,
    MemorySubscriber,
    Trouble,
)
from tests.simulation.database import (
    START,
    Clock,
    Database,
    DatabaseError,
    InboxRow,
    OutboxRow,
    Shard,
)
from tests.simulation.fates import Fates, Fault
from tests.simulation.inbox import MemoryInboxStore
from tests.simulation.outbox import MemoryLeaseStore, MemoryOutbox, MemoryOutboxStore
from tests.simulation.processes import (
    Interrupted,
    InterruptedInbox,
    InterruptedLeases,
    InterruptedSubscriber,
    Killed,
    Process,
)
from tests.simulation.purge import MemoryPurgeStore

RELAY_LEASE = timedelta(seconds=10)
RETENTION = timedelta(hours=2)
DEEPEST = 3
"""How many processes may be suspended inside each other."""

_PAUSE = RetryPolicy(
    first=timedelta(seconds=0.5), longest=timedelta(seconds=4), jitter=0, max_attempts=5
)
_ENCODE = partial(codec.encode, prefix="")
_DECODE = partial(codec.decode, prefix="")
_CATALOG = Catalog()
_RETENTION = Retention(outbox=RETENTION, inbox=RETENTION, batch_size=3, batches_per_pass=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The size of a world."""

    transfers: tuple[Transfer, ...]
    relays: int
    consumers: int
    shards: int
    partitions: int
    relay_batch: int
    consumer_batch: int
    attempts: int
    """Of relays and of handlers."""
    has_fraud_group: bool
    rates: tuple[float, ...] = (1.0,)
    """How fast the processes' own clocks run, in turn."""
    skews: tuple[float, ...] = (0.0,)
    """How many seconds their wall clocks are wrong, in turn."""


class World:
    """Everything that exists in one schedule; its methods are what may happen next."""

    def __init__(self, shape: Shape, fates: Fates, *, trace: list[str] | None = None) -> None:
        self.shape = shape
        self.fates = fates
        self.trace = trace
        self.is_calm = False
        self.clock = Clock()
        self.transfers = shape.transfers
        self.events: dict[int, UUID] = {}
        """The event of each transfer whose writing was begun."""
        self.running: list[Process[Any]] = []
        self.dead: list[Member] = []
        self._ids = 0
        self._unwritten = list(shape.transfers)
        self._writing: set[str | None] = set()
        topics = [physical_topic("", TOPIC, kind) for kind in codec.TxKind]
        self.broker = Broker(topics, shape.partitions)
        self.a, self.b = self._database(), self._database()
        self.databases = {"A": self.a, "B": self.b}
        self.relays = [
            self._relay(service, n) for service in self.databases for n in range(shape.relays)
        ]
        self.consumers = self._consumers()
        self.housekeepers = [self._housekeeper(service) for service in self.databases]
        self.processes: list[Process[Any]] = [
            *self.relays,
            *self.consumers,
            *self.housekeepers,
        ]
        self.next_step: Callable[[], None] = lambda: None
        """What happens while a process is suspended."""

    def say(self, what: str, *about: object) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            indent = "    " * max(0, len(self.running) - 1)
            self.trace.append(f"{self.clock.now - START:6.1f}s {indent}{what.format(*about)}")

    # --- what may happen --------------------------------------------------------------------------

    def write(self) -> None:
        """Let the upstream bank make its next transfer, whose key nobody else is writing."""
        free = [t for t in self._unwritten if t.key is None or t.key not in self._writing]
        if not free:
            return
        transfer = free[0]
        self._unwritten.remove(transfer)
        self._writing.add(transfer.key)
        client: Process[None] = Process(self, "client", lambda _: None)
        client.do(f"writes {_described(transfer)}", partial(self._write, client, transfer))
        self._writing.discard(transfer.key)

    def renew(self, relay: Process[Relay]) -> None:
        """Let a relay renew its leases, beside a pass if it is suspended in one."""
        if self.running.count(relay) < 2:
            relay.do("renews", lambda: sorted(relay.service.renew().shards))

    def work(self, process: Process[Any]) -> bool:
        """Let a process make a pass, unless it is suspended; return whether to go on at once."""
        if process.busy:
            return False
        done = process.do("works", process.service.run_once)
        return bool(done is not None and done.more)

    def stop(self, process: Process[Any]) -> None:
        """End a process in good order."""
        if process.busy or not hasattr(process.service, "close"):
            return
        process.do("stops", process.service.close)
        process.bury()

    def kill(self, process: Process[Any]) -> None:
        """End a process between two passes."""
        if not process.busy:
            self.say("{} is killed between its passes", process)
            process.bury()

    def pass_time(self, seconds: float) -> None:
        """Let time go by; what is locked for too long is freed by the server."""
        self.clock.now += seconds
        self.say("+{} s", seconds)
        for database in self.databases.values():
            database.end_idle_transactions(RELAY_LEASE.total_seconds())

    def evict(self) -> None:
        """Take a member out of its group, a dead one if there is one."""
        members = self.dead or [p.member for p in self.consumers if p.member is not None]
        if not members:
            return
        member = members[self.fates.between(0, len(members) - 1)]
        self.say("{} is put out of its group", member.name)
        self.broker.leave(member)
        if member in self.dead:
            self.dead.remove(member)

    def reset_offsets(self) -> None:
        """Set a partition of a group back to an earlier place."""
        committed = [
            (name, place, offset)
            for name, group in self.broker.groups.items()
            for place, offset in group.committed.items()
            if offset
        ]
        if committed:
            name, place, offset = committed[self.fates.between(0, len(committed) - 1)]
            earlier = self.fates.between(0, offset - 1)
            self.say("{} goes back from {} to {} of {}", name, offset, earlier, place)
            self.broker.reset(name, place, earlier)

    def switch_broker(self) -> None:
        """Let the broker go down, or come back."""
        self.broker.is_down = not self.broker.is_down
        self.say("the broker is down" if self.broker.is_down else "the broker is back")

    def land(self) -> None:
        """Let records arrive whose senders have given up on them."""
        if self.broker.in_flight:
            self.say("{} late records arrive", len(self.broker.in_flight))
            self.broker.land()

    # --- what goes wrong --------------------------------------------------------------------------

    def visit(self, process: Process[Any], place: str, *, answered: bool) -> None:
        """A process comes to a place where something may happen to it."""
        if self.is_calm:
            return
        fault = self.fates.fault()
        if fault is Fault.NONE:
            return
        when = "after" if answered else "before"
        if fault is Fault.STOP:
            if len(self.running) <= DEEPEST:
                self.say("{} is suspended {} {!r}", process, when, place)
                if self.fates.chance(0.3):
                    self.pass_time(RELAY_LEASE.total_seconds() + 1)
                for _ in range(self.fates.between(1, 10)):
                    self.next_step()
                if process.is_doomed:
                    raise Killed
                self.say("{} wakes up {} {!r}", process, when, place)
            return
        self.say("{}: {} {} {!r}", process, fault.name, when, place)
        process.fault(fault, place, answered=answered)

    def visit_running(self, place: str, *, answered: bool) -> None:
        """The process at work, somewhere in a handler, comes to such a place."""
        self.visit(self.running[-1], place, answered=answered)

    def trouble(self, process: Process[Any], records: int) -> Trouble | None:
        """What happens to a call that publishes."""
        if self.is_calm:
            return None
        trouble = self.fates.trouble(records)
        if trouble is not None:
            self.say("{} publishes {} into {}", process, records, trouble)
        return trouble

    # --- its end ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults; what was lost, killed or late by then stays so."""
        self.say("everything heals")
        self.is_calm = True
        self.broker.is_down = False
        self.land()
        for member in self.dead:
            self.broker.leave(member)
        self.dead.clear()

    def drain(self, rounds: int = 30) -> bool:
        """Let the services work until nothing is left to do; False if they do not come to that."""
        self.pass_time(RELAY_LEASE.total_seconds() + 1)
        for _ in range(rounds):
            for relay in self.relays:
                self.renew(relay)
            for process in (*self.relays, *self.consumers):
                while self.work(process):
                    continue
            if self.is_drained():
                return True
            self.pass_time(3.0)
        return False

    def is_drained(self) -> bool:
        """Whether no row is open, and no record unread."""
        rows = [row for db in (self.a, self.b) for t in (db.outbox, db.inbox) for row in t.values()]
        return all(row.settled_at is not None for row in rows) and all(
            consumer.service.has_caught_up() for consumer in self.consumers
        )

    def keep_house(self) -> None:
        """Let the retention of everything end, and the housekeepers go over the tables."""
        self.pass_time(RETENTION.total_seconds() + 60)
        for _ in range(20):
            for housekeeper in self.housekeepers:
                self.work(housekeeper)
            if not self.purgeable():
                return

    def purgeable(self) -> list[OutboxRow | InboxRow]:
        """Return the rows that nobody needs any more once their retention is over."""
        outbox = [row for db in (self.a, self.b) for row in db.outbox.values()]
        inbox = [row for db in (self.a, self.b) for row in db.inbox.values()]
        return [
            *(row for row in outbox if row.status in OUTBOX.purgeable),
            *(row for row in inbox if row.status in INBOX.purgeable),
        ]

    # --- what it is made of -----------------------------------------------------------------------

    def next_id(self) -> UUID:
        """Make an id that grows with time, as a UUIDv7 does."""
        self._ids += 1
        return UUID(int=(int(self.clock.now * 1000) << 80) + self._ids)

    def _write(self, client: Process[None], transfer: Transfer) -> bool:
        event_id = self.events[transfer.number] = self.next_id()
        with self.a.transaction() as session:
            self.a.business.send(session, transfer, event_id)
            client.before("commit of the transfer")
            if not transfer.is_committed:
                raise DatabaseError("the client rolls back")
        client.after("commit of the transfer")
        return True

    def _database(self) -> Database:
        shards = [Shard(n) for n in range(self.shape.shards)]
        return Database(clock=self.clock, shards=shards, business=Bank(self))

    def _relay(self, service: str, n: int) -> Process[Relay]:
        database, shape = self.databases[service], self.shape
        retry = RetryPolicy(
            max_attempts=shape.attempts,
            first=timedelta(seconds=1),
            longest=timedelta(seconds=4),
            jitter=0,
        )

        def build(process: Process[Relay]) -> Relay:
            store = MemoryOutboxStore(database, by=process.name)
            return Relay(
                store=Interrupted(process, store),  # type: ignore[arg-type]
                leases=InterruptedLeases(process, MemoryLeaseStore(database)),  # type: ignore[arg-type]
                publisher=MemoryPublisher(self.broker, process),
                encode=_ENCODE,
                settings=RelaySettings(
                    name=process.name,
                    batch_size=shape.relay_batch,
                    lease=RELAY_LEASE,
                    send_timeout=timedelta(seconds=3),
                    outage_pause=_PAUSE,
                ),
                retry_of=lambda _: retry,
                local_rollbacks={"transfer": database.business.undo} if service == "A" else {},
                clock=process.clock,
            )

        number = n + (0 if service == "A" else shape.relays)
        return Process(self, f"relay {service}{n}", build, **self._clocks(number))

    def _consumers(self) -> list[Process[Consumer]]:
        declared = groups(self.shape.attempts, fraud=self.shape.has_fraud_group)
        of_service = [("A", "refunds"), ("B", "bank"), ("B", "fraud")]
        consumers = []
        for service, name in of_service:
            if name not in declared:
                continue
            topics = [physical_topic("", t, kind) for t, kind in declared[name].subscriptions()]
            self.broker.groups[name] = Group(topics)
            members = 1 if name == "fraud" else self.shape.consumers
            consumers += [self._consumer(service, name, n) for n in range(members)]
        return consumers

    def _consumer(self, service: str, name: str, n: int) -> Process[Consumer]:
        database, shape = self.databases[service], self.shape
        group = groups(shape.attempts, fraud=shape.has_fraud_group)[name]
        outbox = MemoryOutbox(source=service, new_id=self.next_id, catalog=_CATALOG, writer=None)

        def build(process: Process[Consumer]) -> Consumer:
            store = InterruptedInbox(process, MemoryInboxStore(database, by=process.name))
            member = Member(name, process.name)
            subscriber = MemorySubscriber(self.broker, member)
            return Consumer(
                group=group,
                subscriber=InterruptedSubscriber(process, subscriber),  # type: ignore[arg-type]
                store=store,  # type: ignore[arg-type]
                inbox=Inbox(group=group, store=store, outbox=outbox),  # type: ignore[arg-type]
                decode=_DECODE,
                settings=ConsumerSettings(
                    batch_size=shape.consumer_batch, poll_timeout=timedelta(0)
                ),
            )

        return Process(self, f"{name} {n}", build)

    def _housekeeper(self, service: str) -> Process[Housekeeping]:
        def build(process: Process[Housekeeping]) -> Housekeeping:
            store = MemoryPurgeStore(self.databases[service], wall_clock=process.wall_clock)
            return Housekeeping(store=Interrupted(process, store), retention=_RETENTION)  # type: ignore[arg-type]

        number = 0 if service == "A" else 1
        return Process(self, f"housekeeper {service}", build, **self._clocks(number))

    def _clocks(self, number: int) -> dict[str, float]:
        rates, skews = self.shape.rates, self.shape.skews
        return {"rate": rates[number % len(rates)], "skew": skews[number % len(skews)]}


def _described(transfer: Transfer) -> str:
    how = "" if transfer.is_committed else ", rolled back"
    return f"transfer {transfer.number} of key {transfer.key}{how}"


__all__ = ["DEEPEST", "RELAY_LEASE", "Killed", "Shape", "World"]
