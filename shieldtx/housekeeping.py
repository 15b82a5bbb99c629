"""Housekeeping: takes rows away whose retention is over; one pass is `run_once`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

log = logging.getLogger(__name__)


class PurgeStore(Protocol):
    """Removes settled rows of the purgeable states, oldest first, a bounded number at a time."""

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to `limit` rows settled longer ago than `older_than`; return how many."""
        ...

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> int:
        """Remove up to `limit` rows settled longer ago than `older_than`; return how many."""
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

    def run_once(self) -> int:
        """Make one pass over both tables; return the number of rows removed."""
        r = self._retention
        removed = 0
        for purge, age in (
            (self._store.purge_outbox, r.outbox),
            (self._store.purge_inbox, r.inbox),
        ):
            for _ in range(r.batches_per_pass):
                gone = purge(older_than=age, limit=r.batch_size)
                removed += gone
                if gone < r.batch_size:
                    break
        if removed:
            log.info("purged %d rows whose retention is over", removed)
        return removed
