"""What a repair does to a service's rows, and what it asks of the service's database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.ports.hand_over import Arrival, Behind, HandedOver, Key, Line, Sent, Sibling


class RepairAction(StrEnum):
    """What a repair does to one row."""

    HAND_OVER = "hand over"
    """An event is stored in the inbox of the one group that lacks it, as if it had just come."""

    PUBLISH_AGAIN = "publish again"
    """A PROCESSED event comes back in line, under the same id, which inboxes know it by."""

    RELEASE_EVENT = "release event"
    """An event that a dead relay has left PROCESSING comes back in line."""

    RELEASE_ATTEMPT = "release attempt"
    """An event that a dead worker has left PROCESSING is due at once."""

    RAISE_ROLLBACK = "raise rollback"
    """The ROLLBACK event that is owed for an event which a group gave up is written."""

    REPLAY_EVENT = "replay event"
    """A FAILED event has all its attempts again."""

    REPLAY_COMPENSATION = "replay compensation"
    """A DEAD rollback has all its attempts again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSeen:
    """A row as the reconciliation has seen it: of the outbox or, with a group, of its inbox."""

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
    """For the audit: in whose name a batch is repaired, and what the run said about it."""

    who: str
    run_id: str
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Repaired:
    """What became of rows that were to be repaired."""

    done: int = 0
    needless: int = 0
    """It has been done already, by this repair or another one, or the row needs it no more."""
    changed: int = 0
    """They are not as the run saw them, or somebody is moving them now: left alone."""
    out_of_order: int = 0
    """How many of the `done` come behind later events of their keys."""
    events: AbstractSet[UUID] = field(default=frozenset(), compare=False)
    """Of one batch: which ones are done."""

    def plus(self, other: Repaired) -> Repaired:
        """Add what became of others."""
        return Repaired(
            done=self.done + other.done,
            needless=self.needless + other.needless,
            changed=self.changed + other.changed,
            out_of_order=self.out_of_order + other.out_of_order,
        )


class RepairStore(Protocol):
    """The database of one service."""

    def purged_until(self) -> datetime | None:
        """Return up to which time its purge has removed settled rows; None: no purge noted any."""
        ...

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Return which events, by id and source, it has written or received a rollback of.

        A rollback that was discarded takes nothing back.
        """
        ...

    def discarded(
        self, events: Sequence[tuple[UUID, str]], *, group: str | None = None
    ) -> set[tuple[UUID, str]]:
        """Return of which events, by id and source, an operator has discarded a parked record.

        Of one of its groups, or of any.
        """
        ...

    def lines(self, ids: Sequence[UUID]) -> Mapping[UUID, Line]:
        """Return where these events stand in its outbox."""
        ...

    def siblings(
        self,
        keys: Collection[Key],
        *,
        since: datetime | None = None,
        behind: Behind | None = None,
    ) -> Iterator[Sibling]:
        """Yield the service's events of these keys that were sent, or are to be sent.

        Not those of another source in its table, such as a former name of the service: no order
        binds them to these.

        With `since`, only of rows that are open or have settled since: they are found by indexes,
        where all others take a scan of the outbox. With `behind`, only of places that it includes.
        """
        ...

    def now(self) -> datetime:
        """Return the time of its clock."""
        ...

    def receivers(self, source: str) -> set[tuple[str, str]]:
        """Return which groups have received events of a source, by group and event type."""
        ...

    def latest_received(
        self, group: str, source: str, keys: Collection[Key]
    ) -> Mapping[Key, datetime]:
        """Return when the latest event of these keys that a group has received was written.

        It takes a scan of the inbox.
        """
        ...

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        """Yield what a group has received of these keys that was written then or later.

        With `since`, only of rows that are open or have settled since: they are found by indexes,
        where all others take a scan of the inbox.
        """
        ...

    def count_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime
    ) -> Mapping[Key, int]:
        """Return how many events `received_after` yields with `since`, by key."""
        ...

    def sent(self, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        """Read the events of those PROCESSED rows of its outbox that still are as they were seen.

        Without `payloads`, that of each envelope is "null".
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
        """Store events in the inbox of a group, and note it, in one transaction.

        The unique keys of the inbox decide what is new. With `in_order`, none is stored of whose
        key an event before it is not. With `dry_run` nothing is written: the answer says what would
        be.
        """
        ...

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        """Return which of these its inbox holds."""
        ...

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, dry_run: bool
    ) -> Repaired:
        """Repair those rows that still are as they were seen, and note it, in one transaction.

        With `dry_run` nothing is written: the answer says what would be.
        """
        ...
