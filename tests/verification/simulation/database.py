"""A database in memory: rows, row locks, transactions, its own clock, and a history of changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from shieldtx.domain.events import Envelope, shard_of
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.errors import EventRefused
from tests.verification.simulation.pauses import Pauses

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)

START = 1_000.0
"""Start of the databases' clock, in seconds."""

COMPENSATES = "compensates"
"""The first part of a lock on (group, event): the event is compensated, and may be settled."""

WRITTEN_KEY = "business key of a written event"
"""The first part of a lock on (event type, business key) of the outbox."""


class DatabaseError(Exception):
    """The database did not answer, or answered with an error of its own."""


class Blocked(DatabaseError):
    """A lock was not available in time: where PostgreSQL would wait, the simulation gives up."""


@dataclass(slots=True)
class OutboxRow:
    """A row of the outbox table; `due_at` and the like are seconds of the database's clock."""

    envelope: Envelope
    seq: int
    shard: int
    due_at: float
    waiting: bool = False
    is_delayed: bool = False
    """Whether the event is delayed on purpose, and so not ordered; not a column of the table."""
    holds_key: bool = False
    status: OutboxStatus = OutboxStatus.INIT
    attempts: int = 0
    unconfirmed: bool = False
    token: UUID | None = None
    lease_until: float | None = None
    settled_at: float | None = None
    last_error: str | None = None
    checks: int | None = None
    """For a half message, like the two below."""
    check_at: float | None = None
    send_delay: float = 0.0


@dataclass(slots=True)
class InboxRow:
    """A row of the inbox table."""

    envelope: Envelope
    group: str
    seq: int
    due_at: float
    status: InboxStatus = InboxStatus.INIT
    attempts: int = 0
    together: bool = False
    token: UUID | None = None
    lease_until: float | None = None
    settled_at: float | None = None
    compensated_id: UUID | None = None
    last_error: str | None = None


@dataclass(slots=True)
class Shard:
    """A row of the table of shard leases."""

    number: int
    owner: str | None = None
    epoch: int = 0
    lease_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """The record of a trigger on the tables for one change of a row's status."""

    table: str
    event_id: UUID
    group: str
    source: str | None
    """None: the row was inserted."""
    target: str | None
    """None: the row was deleted."""
    by: str
    holder: str | None
    """The process that had claimed the row before."""
    settled_at: float | None = None


@dataclass(slots=True)
class Entry:
    """A line of a bank's ledger."""

    what: str
    transfer: int
    amount: int


class Clock:
    """The databases' time, in seconds; it advances only by explicit calls."""

    def __init__(self) -> None:
        self.now = START

    def datetime(self) -> datetime:
        return EPOCH + timedelta(seconds=self.now)


class Transaction:
    """Replaces the Session of a transaction: its writes are invisible to others until it commits.

    Reads see committed rows, as in READ COMMITTED, and its locks exclude other transactions.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.info: dict[str, Any] = {}
        self.open = True
        self._writes: list[Callable[[], None]] = []
        self._locks: list[Hashable] = []
        self.began = database.clock.now

    # --- calls of the services on a Session -------------------------------------------------------

    def connection(self) -> Transaction:
        return self

    def execution_options(self, **options: Any) -> Transaction:
        self.info.update(options)
        return self

    def flush(self) -> None:
        self.require()

    # --- calls of the stores and the banks --------------------------------------------------------

    def require(self) -> None:
        """Raise the error of a client whose transaction the server has ended."""
        if not self.open:
            raise DatabaseError("terminating connection: idle in transaction for too long")

    def lock(self, key: Hashable, *, writes: bool = False) -> None:
        """Lock an existing row, or the key of a missing one; raises Blocked.

        A row that it `writes` at once is one more version, which other INSERTs have to respect.
        """
        self.require()
        while self.database.locks.setdefault(key, self) is not self:
            self.database.wait(key)
        self._locks.append(key)
        if writes:
            self.database.being_written.add(key)

    def holds(self, key: Hashable) -> bool:
        return self.database.locks.get(key) is self

    def write(self, change: Callable[[], None]) -> None:
        """Make a change at the commit."""
        self.require()
        self._writes.append(change)

    @property
    def size(self) -> tuple[int, int]:
        """How many writes and locks there are."""
        return len(self._writes), len(self._locks)

    def cut(self, size: tuple[int, int]) -> None:
        """Drop the later writes, and release the later locks."""
        writes, locks = size
        del self._writes[writes:]
        kept, dropped = self._locks[:locks], self._locks[locks:]
        self._locks = kept
        for key in dropped:
            if key not in kept:
                self.database.locks.pop(key, None)
                self.database.being_written.discard(key)

    def commit(self) -> None:
        self.require()
        for change in self._writes:
            change()
        self.end()

    def end(self) -> None:
        """Release the locks, and drop everything that is not committed."""
        self.open = False
        self._writes = []
        locks = self.database.locks
        for key in self._locks:
            locks.pop(key, None)
            self.database.being_written.discard(key)
        self._locks = []
        if self in self.database.transactions:
            self.database.transactions.remove(self)


@dataclass(eq=False)
class Database:
    """The tables of one service."""

    clock: Clock
    shards: list[Shard]
    business: Any = None
    """The data of this service's handlers."""
    outbox: dict[UUID, OutboxRow] = field(default_factory=dict)
    inbox: dict[tuple[str, UUID, str], InboxRow] = field(default_factory=dict)
    relays: dict[str, float] = field(default_factory=dict)
    parked: dict[tuple[str, str, int, int], str] = field(default_factory=dict)
    ledger: list[Entry] = field(default_factory=list)
    barrier: dict[UUID, bool] = field(default_factory=dict)
    """By half message: whether its local transaction came before its check."""
    locks: dict[Hashable, Transaction] = field(default_factory=dict)
    being_written: set[Hashable] = field(default_factory=set)
    """The locked rows that have an uncommitted version."""
    transactions: list[Transaction] = field(default_factory=list)
    history: list[Change] = field(default_factory=list)
    written: dict[UUID, OutboxRow] = field(default_factory=dict)
    """Every outbox row that was ever committed; a half message's, when its local transaction is."""
    holders: dict[Hashable, str] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    turns: Counter[Hashable] = field(default_factory=Counter)
    """Number of attempts of an inbox row that no other row can have spoilt."""
    sequence: int = 0
    tokens: int = 0

    @property
    def now(self) -> float:
        return self.clock.now

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit at the end of the block, roll back on any exception."""
        transaction = Transaction(self)
        self.transactions.append(transaction)
        try:
            yield transaction
            transaction.commit()
        finally:
            transaction.end()

    def end_idle_transactions(self, longest: float) -> None:
        """Do as idle_in_transaction_session_timeout does."""
        for transaction in list(self.transactions):
            if self.now - transaction.began > longest:
                transaction.end()

    def next_in_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def next_token(self) -> UUID:
        self.tokens += 1
        return UUID(int=self.tokens)

    def is_passed_over(self, key: Hashable) -> bool:
        """Return whether a statement that skips locked rows leaves this one out."""
        return key in self.locks or any(
            isinstance(lock, tuple) and lock[0] == COMPENSATES and lock[-1] == key
            for lock in self.locks
        )

    def wait(self, key: Hashable) -> None:
        """Raise Blocked: here no statement waits for the end of a transaction."""
        raise Blocked(f"{key} is locked")

    def free(self, key: Hashable) -> None:
        """Return when no transaction has the row locked; earlier reads are then repeated."""
        while key in self.locks:
            self.wait(key)

    def free_for_insert(self, key: Hashable, transaction: Transaction) -> None:
        """Return when no other open transaction has written the row; it may be locked."""
        while key in self.being_written and not transaction.holds(key):
            self.wait(key)

    def insert_outbox(
        self,
        transaction: Transaction,
        envelope: Envelope,
        *,
        delay: float | None = None,
        shards: int | None = None,
    ) -> None:
        """Write an event; its sequence number is assigned now, at the insert.

        Its shard follows from the number `shards`, or from that of the tables. Raises EventRefused
        for a business key that an event of its type already has.
        """
        row = OutboxRow(
            envelope=envelope.evolve(time=self.clock.datetime()),
            seq=self.next_in_sequence(),
            shard=self.shard_of(envelope, shards),
            due_at=self.now + (delay or 0.0),
            waiting=bool(delay),
            is_delayed=bool(delay),
        )
        self._keep_unique(transaction, envelope)
        transaction.write(partial(self._commit_outbox, row))

    def _keep_unique(self, transaction: Transaction, envelope: Envelope) -> None:
        if envelope.biz_key is None or envelope.kind is not TxKind.COMMIT:
            return
        key = (WRITTEN_KEY, envelope.type, envelope.biz_key)
        self.free_for_insert(key, transaction)
        if transaction.holds(key) or any(
            key[1:] == (row.envelope.type, row.envelope.biz_key)
            for row in self.outbox.values()
            if row.envelope.kind is TxKind.COMMIT
        ):
            raise EventRefused("biz_key", f"{envelope.biz_key} was written before")
        transaction.lock(key, writes=True)

    def shard_of(self, envelope: Envelope, shards: int | None = None) -> int:
        """Return the shard of an event, by this number or that of the tables."""
        return shard_of(envelope.key, envelope.id, shards or len(self.shards))

    def _commit_outbox(self, row: OutboxRow) -> None:
        event_id = row.envelope.id
        self.outbox[event_id] = self.written[event_id] = row
        self.history.append(Change("outbox", event_id, "", None, row.status, "application", None))

    def store_half(self, row: OutboxRow) -> None:
        """Store a half message, which contains nothing about its local transaction."""
        event_id = row.envelope.id
        self.outbox[event_id] = row
        self.history.append(Change("outbox", event_id, "", None, row.status, "application", None))

    def move_outbox(self, row: OutboxRow, target: OutboxStatus, by: str) -> None:
        """Change a row's status; a claim makes `by` its holder."""
        event_id = row.envelope.id
        self.history.append(
            Change("outbox", event_id, "", row.status, target, by, self.holders.get(event_id))
        )
        row.status = target
        if target is OutboxStatus.PROCESSING:
            self.holders[event_id] = by

    def move_inbox(self, row: InboxRow, target: InboxStatus, by: str) -> None:
        """Change a row's status; an attempt makes `by` its holder."""
        key = (row.group, row.envelope.id, row.envelope.source)
        self.history.append(
            Change(
                "inbox", row.envelope.id, row.group, row.status, target, by, self.holders.get(key)
            )
        )
        row.status = target
        self.holders[key] = by

    def delete(self, table: str, row: OutboxRow | InboxRow) -> None:
        """Remove a row permanently."""
        group = row.group if isinstance(row, InboxRow) else ""
        envelope = row.envelope
        self.history.append(
            Change(table, envelope.id, group, row.status, None, "retention", None, row.settled_at)
        )
        if isinstance(row, InboxRow):
            del self.inbox[group, envelope.id, envelope.source]
        else:
            del self.outbox[envelope.id]
