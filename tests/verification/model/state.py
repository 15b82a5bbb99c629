"""One moment of the whole system: tables, topics, and the memory of each process.

Values only, so that two paths to the same moment are recognized as equal. The state omits what no
later step can read: records that every group has committed, tokens and counters of settled rows.
Fields that the system does not have but the invariants need are marked "(seen from outside)".
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias, TypeVar

from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.broker import DeliveryOutcome
from tests.verification.model.bounds import Bounds

GONE = -1
"""The token of a claim, or the owner of a shard, of a process that died."""

FORGER = "a foreign client"

Step: TypeAlias = "tuple[str, State]"
"""An action's name, and the moment after it."""


class Event(NamedTuple):
    """An event of the application, or a rollback event that takes it back."""

    number: int
    taken_back_by: str = ""
    """The group that gave the event up and wrote this rollback of it."""

    @property
    def kind(self) -> TxKind:
        return TxKind.ROLLBACK if self.taken_back_by else TxKind.COMMIT

    @property
    def original(self) -> Event:
        return Event(self.number)

    def __str__(self) -> str:
        written = f"e{self.number}"
        return f"{self.taken_back_by}'s rollback of {written}" if self.taken_back_by else written


class OutboxRow(NamedTuple):
    """A row of shield_outbox; its position in the table is its `seq`."""

    event: Event
    status: OutboxStatus = OutboxStatus.INIT
    attempts: int = 0
    token: int | None = None
    """The relay whose claim this is."""
    leased: bool = False
    """Its lease has not expired."""
    waiting: bool = False
    """The row waits for its retry, and blocks the later rows of its key."""
    unconfirmed: bool = False
    """An earlier attempt may have reached the broker."""
    published: bool = False
    """(seen from outside) A record of it has been on the topic."""
    undone: bool = False
    """(seen from outside) Its local rollback has been run."""
    purged: bool = False
    """(seen from outside) No step finds it any more."""

    @property
    def is_settled(self) -> bool:
        return self.status in OUTBOX.settled


class Sending(NamedTuple):
    """One row of a relay's claim, in the relay's memory, and the broker's answer."""

    event: Event
    attempts: int
    unconfirmed: bool
    outcome: DeliveryOutcome | None = None


class Relay(NamedTuple):
    """A relay process: the pending write-back of its last claim."""

    claim: tuple[Sending, ...] = ()
    is_settled: bool = False
    """Only rows with a permanent failure are left of the claim, each a transaction of its own."""
    is_ambiguous: bool = False
    """The answer of the claim was lost: the relay has to withdraw it before the next claim."""

    @property
    def is_idle(self) -> bool:
        return not self.claim and not self.is_ambiguous


class Service(NamedTuple):
    """A service's outbox, its relays, and the lease of the shard of its only key."""

    name: str
    rows: tuple[OutboxRow, ...]
    relays: tuple[Relay, ...]
    owner: int | None = None
    leased: bool = False
    overdue: int | None = None
    """The relay whose abandoned claim is still on its way."""


class InboxRow(NamedTuple):
    """A row of shield_inbox; its position in the table is its `seq`."""

    event: Event
    status: InboxStatus = InboxStatus.INIT
    attempts: int = 0
    token: int | None = None
    """The worker whose attempt this is."""
    leased: bool = False
    runs: int = 0
    """(seen from outside) How often a handler was started on it, since its last replay."""
    parked: bool = False
    """(seen from outside) It was parked at some time, and later rows of its key did not wait."""
    purged: bool = False
    """(seen from outside) No step finds it any more."""

    @property
    def is_settled(self) -> bool:
        return self.status in INBOX.settled


class Phase(IntEnum):
    """The progress of a worker with its current record or row."""

    IDLE = 0
    POLLED = 1
    STORED = 2
    """Stored in the inbox; the offset is not committed."""
    ATTEMPT = 3
    """The attempt is counted; the handler runs."""
    GAVE_UP = 4
    """Only with a mutant: the row is settled, its rollback event is not written."""
    LOOKED = 5
    """The transaction of a rollback has read its event, and has its own row locked."""


class Worker(NamedTuple):
    """A consumer process of a group."""

    phase: Phase = Phase.IDLE
    event: Event | None = None
    attempt: int = 0
    is_member: bool = True
    """The partition of its current record is still its own, so its commit counts."""
    found: bool = False
    """Whether its query found the event."""


class Reading(NamedTuple):
    """A group's progress in the one partition of a topic."""

    owner: int = 0
    position: int = 0
    committed: int = 0


class Group(NamedTuple):
    """A consumer group: its inbox, its workers, its readings, and the effects of its handlers."""

    name: str
    workers: tuple[Worker, ...]
    readings: tuple[Reading | None, Reading | None]
    """Readings of the commit topic and of the rollback topic; None: not read."""
    inbox: tuple[InboxRow, ...] = ()
    effects: tuple[int, ...] = ()
    compensations: tuple[int, ...] = ()


class State(NamedTuple):
    """The whole system; a service and the group at the same index belong together."""

    written: int
    services: tuple[Service, ...]
    topics: tuple[tuple[Event, ...], tuple[Event, ...]]
    """The commit and the rollback topic, from the first record that some group has to read."""
    flying: tuple[Event, ...]
    """Records that a client has given up, still on their way to the broker."""
    groups: tuple[Group, ...]
    faults: int
    """Number of faults that may still happen."""
    decisions: int = 0
    """Number of decisions that an operator may still make."""

    def with_service(self, place: int, service: Service) -> State:
        return self._replace(services=put(self.services, place, service))

    def with_group(self, place: int, group: Group) -> State:
        return self._replace(groups=put(self.groups, place, group))

    def after_fault(self) -> State:
        return self._replace(faults=self.faults - 1)


TOPICS = (TxKind.COMMIT, TxKind.ROLLBACK)

T = TypeVar("T")


def put(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    """Return `items` with another item at index `place`."""
    return (*items[:place], item, *items[place + 1 :])


def initial(bounds: Bounds) -> State:
    """Return the initial state: everything is empty, every process is idle."""
    names = ("orders", *bounds.downstream)
    return State(
        written=0,
        services=tuple(
            Service(name, (), (Relay(),) * (bounds.relays if name == "orders" else 1))
            for name in names
        ),
        topics=((), ()),
        flying=(),
        groups=tuple(
            Group(name, (Worker(),), (None, Reading()))
            if name == "orders"
            else _downstream_group(name, bounds)
            for name in names
        ),
        faults=bounds.faults,
        decisions=bounds.decisions,
    )


def _downstream_group(name: str, bounds: Bounds) -> Group:
    """Each topic is read by another worker, if there are two."""
    if name in bounds.compensating:
        readings = (Reading(), Reading(owner=bounds.workers - 1))
        return Group(name, (Worker(),) * bounds.workers, readings)
    # If another group compensates, the group that refuses needs no second worker.
    return Group(
        name, (Worker(),) * (1 if bounds.compensating else bounds.workers), (Reading(), None)
    )
