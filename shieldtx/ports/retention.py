"""What the purge needs from outside: tables that give up what is settled and old."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

NOTED_AHEAD: Final = timedelta(minutes=1)
"""By how much the note of a purge may be later than what was purged: not every batch writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Purged:
    """What came of one batch, or of a pass."""

    removed: int
    """Rows."""
    more: bool
    """Whether to go on at once."""


class RetentionStore(Protocol):
    """Walks over a table batch by batch, each in a short transaction of its own.

    It remembers how far it is, and starts again after the end. A batch that removes rows of outbox
    or inbox notes up to which time it did, in the same transaction.
    """

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the next `limit` rows, remove the purgeable ones settled before `older_than`."""
        ...

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the next `limit` rows, remove the purgeable ones settled before `older_than`."""
        ...

    def purge_parked(
        self, *, older_than: timedelta, waiting: timedelta | None, limit: int
    ) -> Purged:
        """Remove up to `limit` parked records that were discarded before `older_than`.

        Those that still wait for an operator too, where they were parked before `waiting`.
        """
        ...

    def purge_audit(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the `limit` oldest audit entries, remove those made before `older_than`."""
        ...

    def purge_trace(self, *, older_than: timedelta, keep: int, limit: int) -> Purged:
        """Of the `limit` oldest entries, remove those too old or not among the latest `keep`."""
        ...


class BarrierRetentionStore(Protocol):
    """Takes old rows out of a barrier, each batch in a short transaction of its own."""

    def purge_barrier(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove up to `limit` rows that were entered before `older_than`."""
        ...
