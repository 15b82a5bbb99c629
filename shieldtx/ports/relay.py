"""The relay's side of the outbox table, and the leases of its shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from shieldtx.domain.events import Envelope

LocalRollback: TypeAlias = Callable[[Session, Envelope], None]
"""Undoes the business transaction of an event that can never be published."""


class ClaimedEvent(NamedTuple):
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
    events: Sequence[ClaimedEvent]
    lease_left: timedelta
    """How long the shortest lease among them lasts, by the database's clock at the claim."""
    cut: bool = False
    """The bound on bytes may have left due rows behind."""


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
    """Deferred or unsent: released as they were, the attempt not counted."""
    unconfirmed: Sequence[UUID] = ()
    """Released likewise, with the mark that the broker may have them."""
    retries: Sequence[Retry] = ()
    """Each holds back the later rows of its key until its next attempt."""
    reason: str = ""
    """Of what was given back."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.processed) + len(self.unsent) + len(self.unconfirmed) + len(self.retries)


class RelayStore(Protocol):
    """The relay's side of the outbox table. Every method is one short transaction of its own."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Take up to `limit` due rows of the relay's shards under its lease, attempts + 1.

        Per key the rows come in the order of writing, none while an earlier one waits for a retry;
        those with a chosen delay come before the others, in the order of their due times.
        """
        ...

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Return how long until the next row of the relay's shards is due; None: none is `within`.

        Below zero for one that became due since the last claim, which was `since` ago.
        """
        ...

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Give back what is leased in the relay's shards, its attempt not counted; return how much.

        For a claim whose answer was lost, when all earlier ones are settled: so none of it was
        sent. The shards go on under another name: a claim that is still on its way finds none.
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
        LocalRollbackFailed, both undone, when the local rollback raises, ends or spoils the
        transaction, or cannot be committed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardLeases:
    """What a relay holds after a renewal."""

    shards: frozenset[int]
    relays: int
    """Living relays, this one included."""
    surplus: frozenset[int]
    """Shards above its fair share, to be given back when nothing of them is in flight."""


class LeaseStore(Protocol):
    """Who owns which shard, by the database's clock."""

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        """Announce the relay, extend its leases and take free shards up to its fair share."""
        ...

    def give_back(self, *, relay: str, shards: frozenset[int]) -> None:
        """Free these shards for the other relays."""
        ...

    def leave(self, *, relay: str) -> None:
        """Free every shard of the relay and forget it."""
        ...
