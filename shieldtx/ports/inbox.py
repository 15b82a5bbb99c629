"""The port of a consumer to the inbox table."""

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
from shieldtx.ports.savepoint import Savepoint

Origin: TypeAlias = tuple[str, TxKind, int]
"""The logical topic, the kind and the partition of a row's record."""


Handled: TypeAlias = AbstractSet[tuple[str, TxKind]]
"""The event types and kinds that a worker's group has handlers for."""


class IncomingEvent(NamedTuple):
    """A decoded record, to be stored in the inbox."""

    envelope: Envelope
    record: ReceivedRecord
    lease: timedelta | None = None
    """The maximum duration of its first attempt in a batch; None: it gets an individual attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """A record that cannot become an inbox row, kept unchanged for an operator, with the reason."""

    record: ReceivedRecord
    reason: str


class Attempt(NamedTuple):
    """One counted attempt at an inbox row, fenced by its token."""

    envelope: Envelope
    group: str
    number: int
    """The attempt's number; 1 for the first."""
    token: UUID
    exhausted: bool = False
    """The attempts were used up before: the last one died with its process."""
    partition: int | None = None
    offset: int | None = None
    """Of the record; None for a row that came without a record."""


class AttemptOutcome(StrEnum):
    """The outcome of one attempt at an event."""

    APPLIED = "APPLIED"
    """The effect of the event is committed."""
    COMPENSATED = "COMPENSATED"
    """The compensation of a rollback is committed."""
    MOOT = "MOOT"
    """A rollback had nothing to undo: compensated before, never applied, or fenced."""
    RETRIED = "RETRIED"
    """The attempt failed; another one follows."""
    REFUSED = "REFUSED"
    """The event is given up, and its ROLLBACK event is written."""
    DEAD = "DEAD"
    """The compensation failed permanently, or the event is parked, and an operator decides."""
    BLOCKED = "BLOCKED"
    """No attempt counts: an earlier event is unfinished, another worker has the lease, the handler
    is paused, or this release cannot read the payload's version."""
    LOST = "LOST"
    """Another worker took the event over during the attempt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The result of storing a batch of incoming events."""

    fresh: Sequence[Envelope]
    """New in the inbox, in the order of arrival."""
    started: Sequence[Attempt]
    """First attempts of fresh events: one batch, with one token, in the order of arrival."""
    duplicates: int
    """Received before: same group, source and event id."""
    parked: Sequence[Parked]
    """The records to park, and those whose business key another event has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Original:
    """The event that a rollback takes back, from the tables of this service, and its status."""

    envelope: Envelope
    status: InboxStatus | None
    """Of a received event; None for the service's own event."""
    compensated: bool
    """An earlier rollback of it has been compensated in this group."""


class ReceivedInPart(Exception):
    """A batch was stored up to a record; the rest is not stored, because of `error`."""

    def __init__(self, receipt: Receipt, error: Exception) -> None:
        super().__init__(f"{error} ({len(receipt.fresh)} events before it are received)")
        self.receipt = receipt
        self.error = error


class InboxStore(Protocol):
    """The port of a consumer to the inbox table."""

    def receive(
        self, group: str, arrivals: Sequence[IncomingEvent], parked: Sequence[Parked]
    ) -> Receipt:
        """Store a batch in one transaction; the unique keys decide what is new.

        The same transaction counts the first attempts of events that have a lease and whose key is
        not blocked: the only open rows of the key are started with them.
        """
        ...

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return rows that are ready for an attempt: due, not leased, first of their key.

        Only rows of `handled` types count: open rows of other types block nothing.
        """
        ...

    def longest_due(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return, of the rows that are ready for an attempt, the one that is so for longest."""
        ...

    def newest_unattempted(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return, of the rows that are ready for a first attempt, the one that arrived last."""
        ...

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:
        """Count the unfinished rows of `handled` types by their origin."""
        ...

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count the unfinished rows of all other types by type and kind, `limit` rows at most."""
        ...

    def start_attempt(
        self,
        group: str,
        envelope: Envelope,
        *,
        lease: timedelta,
        max_attempts: int,
        is_probe: bool = False,
    ) -> Attempt | None:
        """Count an attempt and commit, before the handler; None when the row is not ready.

        An attempt that died in a batch is not counted again: another event of the batch may have
        caused it. Nor is one that died as a probe, which makes its row due from now on: the next
        probe takes another.
        """
        ...

    def effect(self, attempt: Attempt) -> AbstractContextManager[Session]:
        """Open the transaction that contains PROCESSED and the handler's writes.

        The transaction commits at the end of the block, and rolls back completely on an error. A
        commit inside the block raises HandlerError, as does a block that ends in another
        transaction than it began in. Raises LeaseLost at the start when another worker has taken
        the row over.
        """
        ...

    def effects(self, attempts: Sequence[Attempt]) -> AbstractContextManager[Session]:
        """Open such a transaction for attempts that were started together: all or none.

        A commit inside the block raises HandlerError.
        """
        ...

    def reset_session(self, session: Session) -> None:
        """Empty the session of an effect for the next handler, without undoing anything.

        Raises HandlerError when the previous handler has ended or damaged the transaction.
        """
        ...

    def note_effect(self, session: Session) -> None:
        """Record that the handler has returned, where interceptors continue after it.

        `reset_session` raises HandlerError when an interceptor rolls the handler's work back, with
        any savepoint.
        """
        ...

    def ends_after(self, session: Session, attempts: Sequence[Attempt], applied: int) -> bool:
        """Whether the last handler left a state in the transaction that no other one may meet.

        Then the transaction of `effects` settles only the first `applied` of its attempts; the
        others stay started, for a later transaction.
        """
        ...

    def settle_only(self, session: Session, attempts: Sequence[Attempt]) -> None:
        """Make the transaction of `effects` settle only its first `attempts`."""
        ...

    def savepoint(self, session: Session, *, is_doubtful: bool = False) -> Savepoint:
        """Set a savepoint in the transaction of `effects`; `reset_session` detects its end.

        A rollback to it costs less if it `is_doubtful`.
        """
        ...

    def refuse(self, session: Session, attempt: Attempt, *, reason: str) -> None:
        """Make the transaction of `effects` settle an attempt as MAX_RECONSUMED.

        The effect of its handler must be undone; its ROLLBACK event belongs to the transaction.
        """
        ...

    def release(self, attempts: Sequence[Attempt]) -> None:
        """Take back the counted start of a batch's attempts, for those that still own their row.

        Each row then waits for an individual attempt, and a rollback for the outcome of its event.
        """
        ...

    def postpone(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Defer the row to its next attempt; False when the attempt no longer owns the row."""
        ...

    def defer(self, attempt: Attempt, *, delay: timedelta, reason: str) -> bool:
        """Take back the counted start of an attempt, and defer the row.

        Returns False when the attempt no longer owns the row.
        """
        ...

    def note(self, attempts: Sequence[Attempt], *, reason: str) -> None:
        """Record why the process of these attempts ends; they stay counted, under their lease.

        `attempts` were started together.
        """
        ...

    def give_up(
        self,
        attempt: Attempt,
        *,
        reason: str,
        in_transaction: Callable[[Session], Any] | None,
        parked: bool = False,
    ) -> bool:
        """Settle the row as MAX_RECONSUMED or DEAD, and call `in_transaction` in its transaction.

        An event becomes DEAD if it is `parked`, and a rollback always. Returns False, without a
        change, when the attempt no longer owns the row.
        """
        ...

    def original(
        self, session: Session, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock the event that a rollback takes back; None: there is no such event.

        An event `written_here`, by this service, is in its outbox; other events are in the group's
        inbox. Id and source must match. A rollback without a source means an event of the outbox.
        """
        ...

    def mark_compensated(self, session: Session, attempt: Attempt) -> None:
        """Record that the rollback's original is compensated: a unique key permits this once."""
        ...

    def fence(self, session: Session, attempt: Attempt) -> bool:
        """Insert the tombstone of an event that its rollback overtook; False if it has come."""
        ...

    def fence_parked(self, session: Session, attempt: Attempt) -> None:
        """Settle the DEAD event that a rollback takes back as FENCED: no operator may replay it.

        `original` has found the event, and holds the lock on its row.
        """
        ...

    def cause(self, session: Session, envelope: Envelope) -> Envelope | None:
        """Return the received event, or rollback, whose handler or compensation wrote `envelope`.

        None when the inbox has no such row.
        """
        ...
