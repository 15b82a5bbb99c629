"""Half messages: their rows in the outbox, and who knows the end of their local transactions."""

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
    """A half message on its way into the table; `delay` or `at` is for when it is committed."""

    envelope: Envelope
    delay: timedelta | None = None
    """From its commit on."""
    at: datetime | None = None
    immunity: timedelta | None = None
    """How long after now it is first asked about; None: as the plan has it."""


class DueCheck(NamedTuple):
    """A check of a half message, which has been counted."""

    envelope: Envelope
    number: int
    """Of this check, from 1 on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckClaim:
    """Checks that one process alone may make, until the next ones of their messages are due."""

    token: UUID
    checks: Sequence[DueCheck]
    more: bool
    """Others may be due already."""


class CheckResult(NamedTuple):
    """What a check said."""

    check: DueCheck
    outcome: LocalOutcome
    reason: str
    """Kept where the outcome is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSchedule:
    """When a half message is asked about, by the database's clock."""

    immunity: timedelta = timedelta(seconds=6)
    """Before the first check, where a message has none of its own."""
    interval: timedelta = timedelta(seconds=30)
    """Between the first two checks."""
    growth: float = 1.0
    """By which factor the interval grows from check to check."""
    longest: timedelta = timedelta(hours=1)
    """Up to which it grows."""
    most: int = 15
    """Checks; when they are used up, an operator decides."""
    max_age: timedelta = timedelta(hours=72)
    """After which an operator decides, however many checks there were."""

    def pauses(self) -> list[timedelta]:
        """Return how long to wait after each check for the next one."""
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

        Raises EventRefused for what was written before.
        """
        ...

    def resolve(self, event_ids: Sequence[UUID], outcome: LocalOutcome) -> dict[UUID, OutboxStatus]:
        """Commit or roll back those that are HALF, in this order; return how each stood before.

        Those that are not there are left out.
        """
        ...

    def types_due(self, event_types: Sequence[str]) -> Collection[str]:
        """Return those of the event types that have a message due for a check."""
        ...

    def half_types(self, event_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Return the event types of those messages that are HALF."""
        ...

    def claim_checks(self, event_type: str, *, limit: int) -> CheckClaim:
        """Take up to `limit` messages of a type that are due for a check, and count the checks.

        Nobody else is given them before the check after it would be due. One whose last check was
        never answered is taken alone: whoever made that may have died of it.
        """
        ...

    def answer(self, token: UUID, answers: Sequence[CheckResult]) -> Collection[UUID]:
        """Write down what checks of a claim said, and return the messages for which it counts.

        It does not for those that are not HALF any more, or that are being checked anew.
        """
        ...

    def give_back(self, token: UUID, checks: Sequence[DueCheck]) -> None:
        """Let checks of a claim that were not made be due at once, for anybody, and uncounted."""
        ...

    def park(self, *, limit: int) -> Sequence[Envelope]:
        """Leave up to `limit` messages to an operator whose checks or time are used up."""
        ...


class Barrier(Protocol):
    """The table in which a local transaction and its check-back find out who was first."""

    routed_by: UpdateBase
    """A statement by which a session with several databases finds the barrier's."""

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; of a foreign one, yes.

        Raises TransactionRefused where the server cannot be asked.
        """
        ...

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection leads to the table of the barrier."""
        ...

    def admit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself.

        Also in a block of the driver's, whose rollback nobody hears of. No statement is run, so
        that this can be called where a session is asynchronous.
        """
        ...

    def enter(self, connection: Connection, event_ids: Sequence[UUID]) -> None:
        """Tie the transaction that is open on the connection to the end of half messages.

        Raises LateTransaction when one of them has been given up, TransactionRefused when the
        connection commits each statement by itself, or leads to another database than checks do.
        """
        ...

    def has_entered(self, connection: Connection, event_ids: Collection[UUID]) -> bool:
        """Whether the open transaction is the one that has entered, and has not lost that again.

        Drivers have a rollback and blocks of their own, and ROLLBACK TO is a statement as any
        other. True as well for a transaction that has failed, and will commit nothing.
        """
        ...

    def ask(self, event_id: UUID) -> LocalOutcome:
        """Return how the local transaction ended; one that has not come can commit no more.

        Waits for one in flight, not for long: then its end is UNKNOWN.
        """
        ...

    def look(self, event_id: UUID) -> LocalOutcome:
        """Return how the local transaction ended, as far as can be seen; it changes nothing.

        UNKNOWN: it has not come, is in flight, or rolled back unasked.
        """
        ...
