"""The ports of half messages: their rows in the outbox, and the barrier of local transactions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import Connection, UpdateBase

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import LocalOutcome, OutboxStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class NewHalfMessage:
    """A half message to be stored; its `delay` or `at` applies once it is committed."""

    envelope: Envelope
    delay: timedelta | None = None
    """From its commit on."""
    at: datetime | None = None
    immunity: timedelta | None = None
    """Time from now to the first check; None: the immunity of the schedule."""


class DueCheck(NamedTuple):
    """A counted check of a half message."""

    envelope: Envelope
    number: int
    """The number of this check, from 1 on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckClaim:
    """Checks that one process alone may make, until the next checks of their messages are due."""

    token: UUID
    checks: Sequence[DueCheck]
    more: bool
    """Other messages may be due already."""


class CheckResult(NamedTuple):
    """The result of a check."""

    check: DueCheck
    outcome: LocalOutcome
    reason: str
    """Kept where the outcome is UNKNOWN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSchedule:
    """The schedule of a half message's checks, by the database's clock."""

    immunity: timedelta = timedelta(seconds=6)
    """Before the first check, for a message without its own immunity."""
    interval: timedelta = timedelta(seconds=30)
    """Between the first two checks."""
    growth: float = 1.0
    """The factor by which the interval grows from check to check."""
    longest: timedelta = timedelta(hours=1)
    """The upper limit of the interval."""
    most: int = 15
    """The number of checks; after the last one, an operator decides."""
    max_age: timedelta = timedelta(hours=72)
    """Maximum age: then an operator decides, whatever the number of checks."""

    def pauses(self) -> list[timedelta]:
        """Return the pause after each check."""
        waits = []
        wait = self.interval
        for _ in range(self.most):
            waits.append(wait)
            wait = max(wait, min(wait * self.growth, self.longest))
        return waits


class HalfMessageStore(Protocol):
    """The half messages in the outbox. Every method is one short transaction of its own."""

    def prepare(self, messages: Sequence[NewHalfMessage]) -> None:
        """Store half messages: all of them, or none and an error.

        Raises EventRefused for a message that was written before.
        """
        ...

    def resolve(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> dict[UUID, OutboxStatus]:
        """Commit or roll back the HALF ones, in this order; return the status of each before.

        The result leaves out messages that do not exist.
        """
        ...

    def types_due(self, event_types: Sequence[str]) -> Collection[str]:
        """Return the event types, of those given, that have a message due for a check."""
        ...

    def half_types(self, event_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Return the event types of the messages that are HALF."""
        ...

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        """Claim up to `limit` messages of a type that are due for a check, and count the checks.

        No other process gets them before their next check is due. A message whose last check has no
        recorded result is claimed alone: that check may have killed its process.
        """
        ...

    def answer(self, token: UUID, answers: Sequence[CheckResult]) -> Collection[UUID]:
        """Record the results of a claim's checks, and return the messages whose result counts.

        A result does not count for a message that is no longer HALF, or that another check has
        claimed.
        """
        ...

    def release(self, token: UUID, checks: Sequence[DueCheck]) -> None:
        """Release checks of a claim that were not made: due at once, and uncounted."""
        ...

    def park(self, *, limit: int) -> Sequence[Envelope]:
        """Leave to an operator up to `limit` messages whose checks or time are used up."""
        ...


class Barrier(Protocol):
    """The table that decides whether a local transaction or its check-back came first."""

    routed_by: UpdateBase
    """A statement by which a session with several databases finds the barrier's database."""

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; true for a foreign one.

        Raises TransactionRefused where the server cannot be queried.
        """
        ...

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection leads to the barrier's table."""
        ...

    def admit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself.

        Also in a block of the driver, whose rollback shieldtx cannot detect. This method runs no
        statement, so that an asynchronous session can call it.
        """
        ...

    def enter(self, connection: Connection, event_ids: Sequence[UUID]) -> None:
        """Tie the connection's open transaction to the outcome of half messages.

        Raises LateTransaction when one of them has been given up. Raises TransactionRefused when
        the connection commits each statement by itself, or leads to another database than the
        checks.
        """
        ...

    def has_entered(self, connection: Connection, event_ids: Collection[UUID]) -> bool:
        """Whether the open transaction is the one that has entered, and is still marked.

        Drivers have rollbacks and blocks of their own, and ROLLBACK TO may be any statement. Also
        true for a failed transaction, which cannot commit.
        """
        ...

    def outcome_of(self, event_id: UUID) -> LocalOutcome:
        """Return the local transaction's outcome; if it has not entered, it cannot commit any more.

        Waits a short time for a transaction in flight: if it is still open, the outcome is UNKNOWN.
        """
        ...

    def visible_outcome(self, event_id: UUID) -> LocalOutcome:
        """Return the visible outcome of the local transaction, without changing anything.

        UNKNOWN: the transaction has not entered, is in flight, or rolled back before a check.
        """
        ...
