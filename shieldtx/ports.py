"""What the services need from outside, as protocols: brokers and stores are their adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.events import Envelope
from shieldtx.states import InboxStatus

# --- broker ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A record for the broker: names as the broker knows them, everything else as bytes."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedRecord:
    """A record as it was read; (topic, partition, offset) names it for ever."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Outcome(Enum):
    """How the publication of one record ended."""

    ACKNOWLEDGED = auto()
    """The broker has it."""

    REJECTED = auto()
    """The broker or its client refuses this record for ever, whatever else works."""

    REFUSED = auto()
    """Refused for now; somebody may mend that (unknown topic, not authorised)."""

    UNCONFIRMED = auto()
    """It was handed to the client, and nobody can tell whether it is in the log."""

    HELD = auto()
    """It was kept back on purpose, with nothing wrong at the broker: its turn comes again."""

    UNSENT = auto()
    """It never left: the broker was known to be away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """The outcome of one record; `reason` says why it was not acknowledged."""

    outcome: Outcome
    reason: str = ""


class Publisher(Protocol):
    """Sends records; used by one thread at a time."""

    def publish(self, records: Sequence[Record], *, timeout: float) -> Sequence[Delivery]:
        """Send `records` in order and answer for each, in the same order, within `timeout` seconds.

        Per (topic, key) a later record is in the log only if the earlier ones of this call are.
        After anything but clear answers the client behind this port is replaced by a fresh one.
        Never raises for what the broker does.
        """
        ...

    def close(self) -> None:
        """Let go of the broker, within a few seconds."""
        ...


class Subscriber(Protocol):
    """Reads the topics of one consumer group; used by one thread at a time."""

    def poll(self, *, timeout: float, limit: int) -> Sequence[ReceivedRecord]:
        """Return up to `limit` records, in order per partition, waiting up to `timeout` seconds.

        Raises BrokerUnavailable when the broker is away, TopicMissing when a topic does not exist.
        """
        ...

    def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """Remember that these records, and all before them in their partitions, are taken care of.

        A commit that comes too late (the partition is somebody else's by now) is no error: the
        records come again there, and the inbox knows them.
        """
        ...

    def rewind(self, records: Sequence[ReceivedRecord]) -> None:
        """Have these records delivered again by the next polls: they could not be taken care of."""
        ...

    def has_caught_up(self) -> bool:
        """Whether this member has joined, and its polls have brought all that is on its partitions.

        Raises BrokerUnavailable.
        """
        ...

    def close(self) -> None:
        """Leave the group, within a few seconds."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicState:
    """A topic as the broker has it."""

    name: str
    partitions: int
    replication: int


class TopicAdmin(Protocol):
    """Makes and lists topics."""

    def create(self, names: Sequence[str], *, partitions: int, replication: int) -> Sequence[str]:
        """Create the topics that are missing and return their names; raises BrokerError."""
        ...

    def describe(self, names: Sequence[str]) -> Mapping[str, TopicState | None]:
        """Tell what each topic looks like; None for one that does not exist. Raises BrokerError."""
        ...

    def close(self) -> None:
        """Let go of the broker."""
        ...


# --- outbox ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """An outbox row in the hands of a relay."""

    envelope: Envelope
    attempts: int
    """This one included."""
    unconfirmed: bool
    """An earlier attempt may have reached the broker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Rows claimed together, in the order in which they are to be sent."""

    token: UUID
    """Fences every write-back: it counts only while the row still carries this token."""
    events: Sequence[Claimed]
    lease_left: timedelta
    """How long the shortest lease among them lasts, by the database's clock at the claim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """A refused row that waits for its next attempt."""

    event_id: UUID
    delay: timedelta
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """How the rows of one claim ended, those apart that fail for good."""

    processed: Sequence[UUID] = ()
    """Acknowledged."""
    unsent: Sequence[UUID] = ()
    """Held or unsent: given back as they were, the attempt not counted."""
    unconfirmed: Sequence[UUID] = ()
    """Given back likewise, with the mark that the broker may have them."""
    retries: Sequence[Retry] = ()
    """Each holds back the later rows of its key until its next attempt."""
    reason: str = ""
    """Of what was given back."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.processed) + len(self.unsent) + len(self.unconfirmed) + len(self.retries)


class OutboxStore(Protocol):
    """The relay's side of the outbox table. Every method is one short transaction of its own."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Take up to `limit` due rows of the relay's shards under its lease, attempts + 1.

        Per key the rows come in the order of writing, none while an earlier one waits for a retry.
        """
        ...

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write down how a batch ended; return how many rows still carried the token."""
        ...

    def fail(
        self,
        token: UUID,
        event_id: UUID,
        *,
        reason: str,
        local_rollback: Callable[[Session], None] | None,
    ) -> bool:
        """Settle a row as FAILED and run the local rollback in the same transaction.

        Returns False, having done nothing, when the row no longer carried the token. Raises
        LocalRollbackFailed, both undone, when the local rollback raises.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Holding:
    """What a relay holds after a renewal."""

    shards: frozenset[int]
    relays: int
    """Living relays, this one included."""
    surplus: frozenset[int]
    """Shards above its fair share, to be given back when nothing of them is in flight."""


class LeaseStore(Protocol):
    """Who owns which shard, by the database's clock."""

    def renew(self, *, relay: str, lease: timedelta) -> Holding:
        """Announce the relay, extend its leases and take free shards up to its fair share."""
        ...

    def give_back(self, *, relay: str, shards: frozenset[int]) -> None:
        """Free these shards for the other relays."""
        ...

    def leave(self, *, relay: str) -> None:
        """Free every shard of the relay and forget it."""
        ...


# --- inbox ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A decoded record on its way into the inbox."""

    envelope: Envelope
    record: ReceivedRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """A record that cannot become an inbox row, kept whole for a person, with the reason."""

    record: ReceivedRecord
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What became of a batch of arrivals."""

    fresh: Sequence[Envelope]
    """New in the inbox, in the order of arrival."""
    duplicates: int
    """Delivered before: same group, source and event id."""
    parked: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One counted attempt at an inbox row, fenced by its token."""

    envelope: Envelope
    group: str
    number: int
    """1 for the first."""
    token: UUID
    exhausted: bool = False
    """The attempts were used up before: the last one died with its process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The event that a rollback takes back, from the tables of this service, and how far it got."""

    envelope: Envelope
    status: InboxStatus | None
    """Of a received one; None for the service's own."""
    compensated: bool
    """Some rollback of it has been compensated in this group before."""


class InboxStore(Protocol):
    """The consumer's side of the inbox table."""

    def receive(self, group: str, arrivals: Sequence[Arrival], parked: Sequence[Parked]) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new."""
        ...

    def due(self, group: str, *, limit: int) -> Sequence[Envelope]:
        """Return rows whose turn it is: due, not leased, none of their key before them."""
        ...

    def start_attempt(
        self, group: str, envelope: Envelope, *, lease: timedelta, max_attempts: int
    ) -> Attempt | None:
        """Count an attempt and commit, before the handler; None when it is not the row's turn."""
        ...

    def effect(self, attempt: Attempt) -> AbstractContextManager[Session]:
        """Open the transaction that holds PROCESSED and the handler's writes.

        It commits at the end of the block, and rolls back whole on an error. Raises LeaseLost at
        the start when another worker has taken the row over.
        """
        ...

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Let the row wait for its next attempt; False when the attempt no longer owns it."""
        ...

    def give_up(
        self, attempt: Attempt, *, reason: str, also: Callable[[Session], Any] | None
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, and run `also` in the same transaction.

        Returns False, having done nothing, when the attempt no longer owns the row.
        """
        ...

    def original(self, session: Session, attempt: Attempt, *, own: bool) -> Original | None:
        """Find and lock what a rollback takes back, in the outbox (`own`) or in the group's inbox.

        None when it is not there.
        """
        ...

    def mark_compensated(self, session: Session, attempt: Attempt) -> None:
        """Note that the rollback's original is compensated: a unique key lets it be once."""
        ...

    def fence(self, session: Session, attempt: Attempt) -> bool:
        """Leave the tombstone of an event that its rollback overtook; False if it has come."""
        ...

    def cause(self, session: Session, envelope: Envelope) -> Envelope | None:
        """Return the received event whose handler wrote `envelope`; None where nobody knows it."""
        ...
