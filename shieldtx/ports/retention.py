"""The port of the purge: tables from which settled, old rows are removed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

NOTED_AHEAD: Final = timedelta(minutes=1)
"""How much later the note of a purge may be than the purged rows: not every batch writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Purged:
    """The result of one batch, or of a pass."""

    removed: int
    """The number of removed rows."""
    more: bool
    """Whether to continue at once."""


class RetentionStore(Protocol):
    """Purges each table in batches, each in a short transaction of its own.

    The store remembers its position, and starts again after the last row. A batch that removes rows
    of outbox or inbox records up to which time, in the same transaction.
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

        Also remove records that still wait for an operator, if they were parked before `waiting`.
        """
        ...

    def purge_audit(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the `limit` oldest audit entries, remove those made before `older_than`."""
        ...

    def purge_trace(self, *, older_than: timedelta, keep: int, limit: int) -> Purged:
        """Of the `limit` oldest entries, remove those too old or not among the latest `keep`."""
        ...


class BarrierRetentionStore(Protocol):
    """Removes old rows from a barrier, each batch in a short transaction of its own."""

    def purge_barrier(self, *, older_than: timedelta, limit: int) -> Purged:
        """Remove up to `limit` rows that were entered before `older_than`."""
        ...
