"""The simulated world: two services on the real relays, consumers and retentions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from shieldtx.domain.events import physical_topic
from shieldtx.domain.states import TxKind
from shieldtx.relay.relay import Relay
from tests.verification.simulation import assembly, half_messages, removed_type
from tests.verification.simulation.assembly import RELAY_LEASE
from tests.verification.simulation.banks import TOPIC, Bank, Transfer, envelope_of
from tests.verification.simulation.broker import Broker, Member, Trouble
from tests.verification.simulation.cooperative_threads import CooperativeThread, CooperativeThreads
from tests.verification.simulation.database import (
    START,
    Clock,
    Database,
    DatabaseError,
    InboxRow,
    Shard,
)
from tests.verification.simulation.fault_schedule import Fault, FaultSchedule
from tests.verification.simulation.processes import Killed, Process
from tests.verification.simulation.second_source import PREFIXES, SOURCE, SecondService
from tests.verification.simulation.world_config import WorldConfig
from tests.verification.simulation.writers import Writer

DEEPEST = 3
"""How many processes may be suspended inside each other."""


class World:
    """Everything that exists in one schedule; its methods are the possible steps."""

    def __init__(
        self, config: WorldConfig, schedule: FaultSchedule, *, trace: list[str] | None = None
    ) -> None:
        self.config = config
        self.schedule = schedule
        self.trace = trace
        self.is_calm = False
        self.clock = Clock()
        self.transfers = config.transfers
        self.events: dict[int, UUID] = {}
        """The event of each transfer whose writing was begun."""
        self.listed: list[InboxRow] = []
        """The events that an operator has seen as parked."""
        self.discarded: set[UUID] = set()
        """The parked events that an operator has discarded."""
        self.acknowledged: set[int] = set()
        """The transfers whose writing has ended without an error, except half messages."""
        self.running: list[Process[Any]] = []
        self.dead: list[Member] = []
        self.overdue: list[Callable[[], object]] = []
        """Statements without a waiting client, on their way to a database."""
        self._ids = 0
        self._unwritten = list(config.transfers)
        self._writing: set[str | None] = set()
        self.broker = Broker(_topics(config), config.partitions, are_apart=config.topics_are_apart)
        self.a, self.b = self._database(), self._database()
        self.databases = {"A": self.a, "B": self.b}
        self.second = SecondService(self)
        counts = dict.fromkeys(self.databases, config.relays)
        if config.notices:
            counts[SOURCE] = 1
        self.relays_of = {
            source: [assembly.relay(self, source, n) for n in range(count)]
            for source, count in counts.items()
        }
        self.relays = [relay for relays in self.relays_of.values() for relay in relays]
        self.consumers = assembly.consumers(self)
        removed_type.receive(self)
        self._writers = [Writer(self.a, setting) for setting in config.shard_settings]
        self.retentions = [assembly.retention(self, service) for service in self.databases]
        self.checking: list[Process[Any]] = (
            [*half_messages.checking(self)] if config.half_messages else []
        )
        self.processes: list[Process[Any]] = [
            *self.relays,
            *self.consumers,
            *self.retentions,
            *self.checking,
        ]
        self.threads = CooperativeThreads() if config.has_threads else None
        self.sleeping: list[CooperativeThread] = []
        self.next_step: Callable[[], None] = lambda: None
        """The step that runs while a process is suspended."""

    def has_defect(self) -> bool:
        """Return whether the release with the defect is running."""
        return not self.is_calm and self.clock.now - START < self.config.defect_seconds

    def may_die_as_a_probe(self) -> None:
        """Let the process in which a paused handler runs die, in some worlds."""
        share = self.config.deadly_probes
        if share and self.b.pauses.rows and self.schedule.chance(share):
            self.say("{} is killed in the handler", self.running[-1])
            raise Killed

    def say(self, what: str, *about: object) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            indent = "    " * max(0, len(self.running) - 1)
            self.trace.append(f"{self.clock.now - START:6.1f}s {indent}{what.format(*about)}")

    # --- possible steps
    # ----------------------------------------------------------------------------

    def write(self) -> None:
        """Let the upstream bank make its next transfer, under a key that is not being written."""
        free = [t for t in self._unwritten if t.key is None or t.key not in self._writing]
        if not free:
            return
        transfer = free[0]
        self._unwritten.remove(transfer)
        self._writing.add(transfer.key)
        client: Process[None] = Process(self, "client", lambda _: None)
        self.act(client, _described(transfer), partial(self._write, client, transfer))

    def relay_has_died(self, name: str) -> bool:
        """Whether the process of a relay, which may have been renamed, does not exist any more."""
        process = name.partition("+")[0]
        return self.config.has_early_takeovers and not any(
            relay.exists and relay.name == process for relay in self.relays
        )

    def renew(self, relay: Process[Relay]) -> None:
        """Let a relay renew its leases, concurrently with a pass if it is suspended in one."""
        if relay.threads < 2 and not relay.is_doomed:
            self.act(relay, "renews", lambda: sorted(relay.service.renew().shards))

    def work(self, process: Process[Any]) -> bool:
        """Let a process make a pass, unless it is suspended; return whether to continue at once."""
        if process.busy:
            return False
        done = self.act(process, "works", process.service.run_once)
        return bool(done is not None and done.more)

    def stop(self, process: Process[Any]) -> None:
        """End a process in good order."""
        if process.busy or not hasattr(process.service, "close"):
            return
        self.act(process, "stops", partial(_close, process))

    def kill(self, process: Process[Any]) -> None:
        """Kill a process between two passes, or a suspended one when it resumes."""
        if not process.busy:
            self.say("{} is killed between its passes", process)
            process.bury()
        elif self.sleeping:
            self.say("{} is killed in its sleep", process)
            process.is_doomed = True

    def pass_time(self, seconds: float) -> None:
        """Let time pass; the server releases locks that are too old."""
        self.clock.now += seconds
        self.say("+{} s", seconds)
        for database in self.databases.values():
            database.end_idle_transactions(RELAY_LEASE.total_seconds())

    def let_leases_lapse(self) -> None:
        """Let a lease expire, so that running relays take over from suspended ones."""
        self.pass_time(RELAY_LEASE.total_seconds() + 1)
        for relay in self.relays:
            if not relay.busy:
                self.renew(relay)

    def evict(self) -> None:
        """Remove a member from its group, a dead one if there is one."""
        members = self.dead or [p.member for p in self.consumers if p.member is not None]
        if not members:
            return
        member = members[self.schedule.between(0, len(members) - 1)]
        self.say("{} is put out of its group", member.name)
        self.broker.leave(member)
        if member in self.dead:
            self.dead.remove(member)

    def reset_offsets(self) -> None:
        """Set a partition of a group back to an earlier offset."""
        committed = [
            (name, place, offset)
            for name, group in self.broker.groups.items()
            for place, offset in group.committed.items()
            if offset
        ]
        if committed:
            name, place, offset = committed[self.schedule.between(0, len(committed) - 1)]
            earlier = self.schedule.between(0, offset - 1)
            self.say("{} goes back from {} to {} of {}", name, offset, earlier, place)
            self.broker.reset(name, place, earlier)

    def switch_broker(self) -> None:
        """Let the broker go down, or come back."""
        self.broker.is_down = not self.broker.is_down
        self.say("the broker is down" if self.broker.is_down else "the broker is back")

    def land(self) -> None:
        """Let records arrive whose senders have stopped waiting."""
        if self.broker.in_flight:
            self.say("{} late records arrive", len(self.broker.in_flight))
            self.broker.land()

    def arrive(self) -> None:
        """Let a database execute a statement whose sender has stopped waiting."""
        if self.overdue:
            late = self.overdue.pop(self.schedule.between(0, len(self.overdue) - 1))
            try:
                self.say("an overdue statement arrives: {}", late())
            except DatabaseError as error:
                self.say("an overdue statement arrives: {!r}", error)

    def wake(self) -> None:
        """Resume one of the concurrently suspended processes."""
        if self.sleeping:
            thread = self.sleeping.pop(self.schedule.between(0, len(self.sleeping) - 1))
            thread.resume()
            if not thread.is_done:
                self.sleeping.append(thread)

    # --- faults
    # ------------------------------------------------------------------------------------

    def visit(self, process: Process[Any], place: str, *, answered: bool) -> None:
        """A process reaches a position with a possible fault."""
        if self.is_calm:
            return
        if self.overdue and self.schedule.chance(0.2):
            self.arrive()
            # Only later events show whether it caused damage.
            if self.schedule.chance(0.7):
                self.write()
        fault = self.schedule.fault()
        if fault is Fault.NONE:
            return
        when = "after" if answered else "before"
        if fault is Fault.STOP:
            self.say("{} is suspended {} {!r}", process, when, place)
            self._suspend()
            if process.is_doomed:
                raise Killed
            self.say("{} wakes up {} {!r}", process, when, place)
            return
        error = process.error_of(fault, place, answered=answered)
        if error is not None:
            self.say("{}: {} {} {!r}", process, fault.name, when, place)
            raise error

    def visit_running(self, place: str, *, answered: bool) -> None:
        """The running process, somewhere in a handler, reaches such a position."""
        self.visit(self.running[-1], place, answered=answered)

    def trouble(self, process: Process[Any], records: int) -> Trouble | None:
        """Return the trouble of a call that publishes."""
        if self.is_calm:
            return None
        trouble = self.schedule.trouble(records)
        if trouble is not None:
            self.say("{} publishes {} into {}", process, records, trouble)
        return trouble

    def _suspend(self) -> None:
        """Let others run: concurrently with the process, or inside the call that it makes."""
        if self.threads is not None and self.threads.running is not None:
            asleep, self.running = self.running, []
            self.threads.running.pause()
            self.running = asleep
        elif len(self.running) <= DEEPEST:
            if self.schedule.chance(0.3):
                self.let_leases_lapse()
            for _ in range(self.schedule.between(1, 10)):
                self.next_step()

    # --- parts
    # -------------------------------------------------------------------------------------

    def writer_of(self, transfer: Transfer) -> Writer:
        """Return the web process in which a transfer is made."""
        return self._writers[transfer.number % len(self._writers)]

    def database_of(self, source: str) -> Database:
        """Return the database whose outbox a source writes into."""
        return self.databases.get(source, self.a)

    def next_id(self) -> UUID:
        """Make an id that grows with time, as a UUIDv7 does."""
        self._ids += 1
        return UUID(int=(int(self.clock.now * 1000) << 80) + self._ids)

    def act(self, process: Process[Any], what: str, call: Callable[[], Any]) -> Any:
        """Let a process do something, in a thread of its own where threads exist."""
        if self.threads is None or self.is_calm or self.running:
            return process.do(what, call)
        thread = self.threads.start(partial(process.do, what, call))
        if not thread.is_done:
            self.sleeping.append(thread)
        return None

    def _write(self, client: Process[None], transfer: Transfer) -> bool:
        event_id = self.events[transfer.number] = self.next_id()
        try:
            if transfer.number in self.config.half_messages:
                half_messages.write(self, client, transfer, envelope_of(transfer, event_id))
                return True
            with self.a.transaction() as session:
                shards = partial(self.writer_of(transfer).shards, client)
                self.a.business.send(session, transfer, event_id, shards)
                client.before("commit of the transfer")
                if not transfer.is_committed:
                    raise DatabaseError("the client rolls back")
        finally:
            self._writing.discard(transfer.key)
        client.after("commit of the transfer")
        self.acknowledged.add(transfer.number)
        return True

    def _database(self) -> Database:
        shards = [Shard(n) for n in range(self.config.shards)]
        return Database(clock=self.clock, shards=shards, business=Bank(self))


def _topics(config: WorldConfig) -> list[str]:
    """Return all topics; with a second source, those under wrong names too."""
    prefixes = set(PREFIXES.values()) if config.notices else {""}
    names = dict.fromkeys([TOPIC, *(notice.topic for notice in config.notices)])
    return [
        physical_topic(prefix, topic, kind)
        for prefix in sorted(prefixes)
        for topic in names
        for kind in TxKind
    ]


def _close(process: Process[Any]) -> None:
    try:
        process.service.close()
    finally:
        process.bury()


def _described(transfer: Transfer) -> str:
    how = "" if transfer.is_committed else ", rolled back"
    return f"writes transfer {transfer.number} of key {transfer.key}{how}"
