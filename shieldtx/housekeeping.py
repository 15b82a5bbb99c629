"""Housekeeping: takes rows away whose retention is over; one pass is `run_once`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purged:
    """What came of one batch, or of a pass."""

    removed: int
    """Rows."""
    more: bool
    """Whether to go on at once."""


class PurgeStore(Protocol):
    """Walks over a table batch by batch, each in a short transaction of its own.

    It remembers how far it is, and starts again after the end.
    """

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the next `limit` rows, remove the purgeable ones settled before `older_than`."""
        ...

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Of the next `limit` rows, remove the purgeable ones settled before `older_than`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long settled rows stay, by the database's clock.

    The inbox's must reach as far back as a record can come again: topic retention plus redelivery.
    """

    outbox: timedelta
    inbox: timedelta
    batch_size: int = 1000
    batches_per_pass: int = 50


class Housekeeping:
    """Purges in small transactions, so that it never stands in anybody's way for long."""

    def __init__(self, *, store: PurgeStore, retention: Retention) -> None:
        self._store = store
        self._retention = retention

    def run_once(self) -> Purged:
        """Make one pass over both tables, of a bounded number of batches."""
        r = self._retention
        outbox = self._purge(self._store.purge_outbox, r.outbox)
        inbox = self._purge(self._store.purge_inbox, r.inbox)
        removed = outbox.removed + inbox.removed
        if removed:
            log.info("purged %d rows whose retention is over", removed)
        return Purged(removed=removed, more=outbox.more or inbox.more)

    def _purge(self, purge: Callable[..., Purged], older_than: timedelta) -> Purged:
        removed = 0
        for _ in range(self._retention.batches_per_pass):
            batch = purge(older_than=older_than, limit=self._retention.batch_size)
            removed += batch.removed
            if not batch.more:
                return Purged(removed=removed, more=False)
        # A long way over rows that stay is no reason to hurry.
        return Purged(removed=removed, more=removed > 0)
