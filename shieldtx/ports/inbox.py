"""The consumer's side of the inbox table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.broker import ReceivedRecord

Origin: TypeAlias = tuple[str, TxKind, int]
"""The logical topic, the kind and the partition that a row came from."""


Handled: TypeAlias = AbstractSet[tuple[str, TxKind]]
"""The event types and kinds that a worker's group has handlers for."""


class IncomingEvent(NamedTuple):
    """A decoded record on its way into the inbox."""

    envelope: Envelope
    record: ReceivedRecord
    lease: timedelta | None = None
    """How long its first attempt may take as one of a batch; None: it gets a turn of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """A record that cannot become an inbox row, kept whole for an operator, with the reason."""

    record: ReceivedRecord
    reason: str


class Attempt(NamedTuple):
    """One counted attempt at an inbox row, fenced by its token."""

    envelope: Envelope
    group: str
    number: int
    """1 for the first."""
    token: UUID
    exhausted: bool = False
    """The attempts were used up before: the last one died with its process."""
    partition: int | None = None
    offset: int | None = None
    """Of the record; None of a row that came without one."""


class AttemptOutcome(StrEnum):
    """How one attempt at an event ended."""

    APPLIED = "APPLIED"
    """Its effect is committed."""
    COMPENSATED = "COMPENSATED"
    """A rollback's compensation is committed."""
    MOOT = "MOOT"
    """A rollback without anything to undo: compensated before, never applied, or fenced."""
    RETRIED = "RETRIED"
    """The attempt failed; another one follows."""
    REFUSED = "REFUSED"
    """The event is given up, and its ROLLBACK event is written."""
    DEAD = "DEAD"
    """The compensation failed for good, and an operator decides."""
    BLOCKED = "BLOCKED"
    """No attempt was made: an earlier event is unfinished, or another worker has the lease."""
    LOST = "LOST"
    """Another worker took the event over during the attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What became of a batch of arrivals."""

    fresh: Sequence[Envelope]
    """New in the inbox, in the order of arrival."""
    started: Sequence[Attempt]
    """First attempts of fresh ones: one batch, with one token, in the order of arrival."""
    duplicates: int
    """Delivered before: same group, source and event id."""
    parked: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The event that a rollback takes back, from the tables of this service, and how far it got."""

    envelope: Envelope
    status: InboxStatus | None
    """Of a received one; None for the service's own."""
    compensated: bool
    """Some rollback of it has been compensated in this group before."""


class ReceivedInPart(Exception):
    """A batch was received up to a record: the rest is not, because of `error`."""

    def __init__(self, receipt: Receipt, error: Exception) -> None:
        super().__init__(f"{error} ({len(receipt.fresh)} events before it are received)")
        self.receipt = receipt
        self.error = error


class InboxStore(Protocol):
    """The consumer's side of the inbox table."""

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new.

        The same transaction counts the first attempts of those that have a lease and whose turn it
        is: no row of their key is open but those that are started with them.
        """
        ...

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return rows whose turn it is: due, not leased, none of their key before them.

        Only rows of `handled` types count: however many others are open, they hold up nothing.
        """
        ...

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:
        """Count the unfinished rows of `handled` types by where they came from."""
        ...

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count the unfinished rows of all other types by type and kind, `limit` rows at most."""
        ...

    def start_attempt(
        self, group: str, envelope: Envelope, *, lease: timedelta, max_attempts: int
    ) -> Attempt | None:
        """Count an attempt and commit, before the handler; None when it is not the row's turn.

        An attempt that died in a batch is not counted again: it may have been a neighbour's fault.
        """
        ...

    def effect(self, attempt: Attempt) -> AbstractContextManager[Session]:
        """Open the transaction that holds PROCESSED and the handler's writes.

        It commits at the end of the block, and rolls back whole on an error. Who commits inside the
        block gets a HandlerError instead, as does a block that ends in another transaction than it
        began in. Raises LeaseLost at the start when another worker has taken the row over.
        """
        ...

    def effects(self, attempts: Sequence[Attempt]) -> AbstractContextManager[Session]:
        """Open such a transaction for attempts that were started together: all or none.

        Who commits inside the block gets a HandlerError instead.
        """
        ...

    def reset_session(self, session: Session) -> None:
        """Empty the session of an effect for the next handler; nothing in it is undone.

        Raises HandlerError when the handler before has ended or spoilt the transaction.
        """
        ...

    def note_effect(self, session: Session) -> None:
        """Note that the handler has done its work, where interceptors go on behind it.

        `reset_session` raises HandlerError when they roll it back, with whichever savepoint.
        """
        ...

    def ends_after(self, session: Session, attempts: Sequence[Attempt], applied: int) -> bool:
        """Whether the last handler left something in the transaction that no other may meet.

        Then the transaction of `effects` settles the first `applied` of its attempts alone; the
        others stay started, for a transaction of theirs.
        """
        ...

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Take back the counted start of attempts of one batch, of those that still own their row.

        Each row then waits for a turn of its own, a rollback for the end of its event.
        """
        ...

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Let the row wait for its next attempt; False when the attempt no longer owns it."""
        ...

    def note(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """Write down why the process of these attempts ends; they stay counted, under their lease.

        `attempts` were started together.
        """
        ...

    def give_up(
        self, attempt: Attempt, *, reason: str, in_transaction: Callable[[Session], Any] | None
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, and call `in_transaction` in its transaction.

        Returns False, having done nothing, when the attempt no longer owns the row.
        """
        ...

    def original(
        self, session: Session, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock what a rollback takes back.

        An event that was `written_here`, by this service, is in its outbox, others are in the
        group's inbox. None when no event of this id and source is there. A rollback that names no
        source means an event of the outbox.
        """
        ...

    def mark_compensated(self, session: Session, attempt: Attempt) -> None:
        """Note that the rollback's original is compensated: a unique key lets it be once."""
        ...

    def fence(self, session: Session, attempt: Attempt) -> bool:
        """Leave the tombstone of an event that its rollback overtook; False if it has come."""
        ...

    def cause(self, session: Session, envelope: Envelope) -> Envelope | None:
        """Return the received event, or rollback, whose handler or compensation wrote `envelope`.

        None when the inbox has no such row.
        """
        ...
