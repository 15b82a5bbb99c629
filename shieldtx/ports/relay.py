"""The port of a relay to the outbox table, and the leases of its shards."""

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
    """An outbox row that a relay has claimed."""

    envelope: Envelope
    attempts: int
    """Including this one."""
    unconfirmed: bool
    """An earlier attempt may have reached the broker."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Rows claimed together, in the order of sending."""

    token: UUID
    """Fences every write-back: a write-back counts only while the row still carries this token."""
    events: Sequence[ClaimedEvent]
    lease_left: timedelta
    """How long the shortest lease among them lasts, by the database's clock at the claim."""
    cut: bool = False
    """The limit on bytes may have left due rows unclaimed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """A refused row that waits for its next attempt."""

    event_id: UUID
    delay: timedelta
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """The outcomes of one claim's rows, except permanent failures."""

    processed: Sequence[UUID] = ()
    """Acknowledged rows."""
    unsent: Sequence[UUID] = ()
    """Deferred or unsent rows: released unchanged, the attempt not counted."""
    unconfirmed: Sequence[UUID] = ()
    """Released in the same way, and marked: the broker may have them."""
    retries: Sequence[Retry] = ()
    """Each blocks the later rows of its key until its next attempt."""
    reason: str = ""
    """Why rows were released."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.processed) + len(self.unsent) + len(self.unconfirmed) + len(self.retries)


class RelayStore(Protocol):
    """The port of a relay to the outbox table. Every method is one short transaction of its own."""

    def claim(self, *, relay: str, limit: int) -> Claim:
        """Claim up to `limit` due rows of the relay's shards under its lease; count the attempt.

        Per key, rows come in the order of writing, and a row that waits for a retry blocks the
        later ones. Rows with a chosen delay come before the others, in the order of their due
        times.
        """
        ...

    def until_due(self, *, relay: str, since: timedelta, within: timedelta) -> timedelta | None:
        """Return the time until the next row of the relay's shards is due; None: none is `within`.

        Negative for a row that became due since the last claim, which was `since` ago.
        """
        ...

    def withdraw(self, *, relay: str, renamed: str) -> int:
        """Undo a claim whose response was lost, and return the number of released rows.

        Call this when all earlier claims are settled: then nothing of the lost claim was sent. The
        attempts are not counted. `renamed` is the shards' new owner, so that the lost claim, if it
        still executes, finds no rows.
        """
        ...

    def settle(self, token: UUID, settlement: Settlement) -> int:
        """Write the outcomes of a batch, and return how many rows still carried the token."""
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

        Returns False, without a change, when the row no longer carried the token. Raises
        LocalRollbackFailed, both undone, when the local rollback raises, ends or damages the
        transaction, or cannot be committed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardLeases:
    """What a relay owns after a renewal."""

    shards: frozenset[int]
    relays: int
    """Active relays, including this one."""
    surplus: frozenset[int]
    """Shards above its fair share, to be released when none of their rows is in flight."""


class LeaseStore(Protocol):
    """The owners of the shards, by the database's clock."""

    def renew(self, *, relay: str, lease: timedelta) -> ShardLeases:
        """Announce the relay, extend its leases and take free shards up to its fair share."""
        ...

    def release(self, *, relay: str, shards: frozenset[int]) -> None:
        """Release these shards for the other relays."""
        ...

    def leave(self, *, relay: str) -> None:
        """Release every shard of the relay, and remove the relay."""
        ...
