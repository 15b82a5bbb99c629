"""The port of a repair to a service's database: repairs of its rows, and queries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.ports.hand_over import (
    Arrival,
    EventPosition,
    HandedOver,
    Key,
    LaterPositions,
    Sent,
    Sibling,
)


class RepairAction(StrEnum):
    """What a repair does to one row."""

    HAND_OVER = "hand over"
    """Stores an event in the inbox of the one group that lacks it, as if it had just arrived."""

    PUBLISH_AGAIN = "publish again"
    """Queues a PROCESSED event again, under the same id, by which inboxes recognise it."""

    RELEASE_EVENT = "release event"
    """Queues an event again that a dead relay has left PROCESSING."""

    RELEASE_ATTEMPT = "release attempt"
    """Makes an event due at once that a dead worker has left PROCESSING."""

    RAISE_ROLLBACK = "raise rollback"
    """Writes the missing ROLLBACK event of an event that a group gave up."""

    REPLAY_EVENT = "replay event"
    """Gives a FAILED event all its attempts again."""

    REPLAY_COMPENSATION = "replay compensation"
    """Gives a DEAD rollback all its attempts again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSeen:
    """A row as the reconciliation saw it: of the outbox or, with a group, of its inbox."""

    event_id: UUID
    source: str
    """The service that wrote the event."""
    group: str | None = None
    status: str
    settled_at: datetime | None
    attempts: int | None
    """None: not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairedEvent:
    """An event that a group should have received."""

    event_id: UUID
    source: str
    group: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """For the audit log: the user of a repair, the run, and the run's verdict about the batch."""

    who: str
    run_id: str
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repaired:
    """The result of a repair of rows."""

    done: int = 0
    needless: int = 0
    """Repaired already, by this repair or another one, or no longer in need of it."""
    changed: int = 0
    """Left alone: not as the run saw them, or being changed by another transaction now."""
    out_of_order: int = 0
    """How many of the `done` come after later events of their keys."""
    events: AbstractSet[UUID] = field(default=frozenset(), compare=False)
    """Of one batch: the repaired events."""

    def plus(self, other: Repaired) -> Repaired:
        """Add the result of other rows."""
        return Repaired(
            done=self.done + other.done,
            needless=self.needless + other.needless,
            changed=self.changed + other.changed,
            out_of_order=self.out_of_order + other.out_of_order,
        )


class RepairStore(Protocol):
    """The database of one service."""

    def purged_until(self) -> datetime | None:
        """Return the time up to which its purge removed settled rows; None: no such note."""
        ...

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Return the events, by id and source, of which it has written or received a rollback.

        A discarded rollback takes nothing back.
        """
        ...

    def discarded(
        self, events: Sequence[tuple[UUID, str]], *, group: str | None = None
    ) -> set[tuple[UUID, str]]:
        """Return the events, by id and source, of which an operator has discarded a parked record.

        Of the given group, or of any.
        """
        ...

    def positions(self, ids: Sequence[UUID]) -> Mapping[UUID, EventPosition]:
        """Return the positions of these events in its outbox."""
        ...

    def siblings(
        self,
        keys: Collection[Key],
        *,
        since: datetime | None = None,
        later: LaterPositions | None = None,
    ) -> Iterator[Sibling]:
        """Yield the service's events of these keys that were sent, or are to be sent.

        Events of another source in its table are left out, such as those of the service's former
        name: no order exists between them.

        With `since`, only rows that are open or have settled since: indexes find them, where all
        rows need a scan of the outbox. With `later`, only positions within these bounds.
        """
        ...

    def now(self) -> datetime:
        """Return the time of its clock."""
        ...

    def receivers(self, source: str) -> set[tuple[str, str]]:
        """Return the groups that have received events of a source, with the event types."""
        ...

    def latest_received(
        self, group: str, source: str, keys: Collection[Key]
    ) -> Mapping[Key, datetime]:
        """Return, by key, when the latest event that a group has received was written.

        Needs a scan of the inbox.
        """
        ...

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        """Yield a group's received events of these keys that were written then or later.

        With `since`, only rows that are open or have settled since: indexes find them, where all
        rows need a scan of the inbox.
        """
        ...

    def count_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime
    ) -> Mapping[Key, int]:
        """Return how many events `received_after` yields with `since`, by key."""
        ...

    def sent(self, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        """Return the events of the PROCESSED outbox rows that are unchanged since the run saw them.

        Without `payloads`, the payload of each envelope is "null".
        """
        ...

    def hand_over(
        self,
        group: str,
        envelopes: Sequence[Envelope],
        *,
        note: Note,
        in_order: bool,
        dry_run: bool,
    ) -> HandedOver:
        """Store events in the inbox of a group, with an audit entry, in one transaction.

        The unique keys of the inbox decide what is new. With `in_order`, no event is stored after
        one of its key that is not stored. With `dry_run` nothing is written: the result is that of
        a real run.
        """
        ...

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        """Return the events, of those given, that its inbox contains."""
        ...

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, dry_run: bool
    ) -> Repaired:
        """Repair rows unchanged since the run saw them, and record it, in one transaction.

        With `dry_run` nothing is written: the result is that of a real run.
        """
        ...
