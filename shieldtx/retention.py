"""Retention: a pass of `run_once` purges the rows whose retention is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from shieldtx.ports.retention import BarrierRetentionStore, Purged, RetentionStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """How long settled rows are kept, by the database's clock.

    `inbox` must be as long as a record can arrive again: topic retention plus redelivery.
    """

    outbox: timedelta
    inbox: timedelta
    barrier: timedelta = timedelta(days=7)
    """More than the age up to which half messages are checked."""
    parked: timedelta | None = None
    """Of parked records that wait for an operator; None: permanently. Discarded ones: as the
    inbox."""
    audit: timedelta | None = None
    """Of audit entries; None: permanently."""
    trace: timedelta | None = None
    """Of trace entries; None: this service does not purge them."""
    trace_rows: int = 1_000_000
    batch_size: int = 1000
    batches_per_pass: int = 50


REST = 0.15
"""Pause after a batch, as a share of the batch's time: other clients need the database too."""


class RetentionService:
    """Purges in small transactions with pauses, so that other transactions wait only briefly."""

    def __init__(
        self,
        *,
        store: RetentionStore,
        retention: Retention,
        barriers: Sequence[BarrierRetentionStore] = (),
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        """Purge through `store`; `rest` pauses for a number of seconds after each batch.

        `barriers` may be in other databases.
        """
        self._store = store
        self._barriers = barriers
        self._retention = retention
        self._clock = clock
        self._rest = rest

    def run_once(self) -> Purged:
        """Purge each table once, up to `batches_per_pass` batches, and return what was removed."""
        r = self._retention
        done = [
            self._purge("outbox", self._store.purge_outbox, r.outbox),
            self._purge("inbox", self._store.purge_inbox, r.inbox),
            self._purge("parked", partial(self._store.purge_parked, waiting=r.parked), r.inbox),
            *(self._purge("barrier", store.purge_barrier, r.barrier) for store in self._barriers),
        ]
        if r.audit is not None:
            done.append(self._purge("audit", self._store.purge_audit, r.audit))
        if r.trace is not None:
            purge = partial(self._store.purge_trace, keep=r.trace_rows)
            done.append(self._purge("trace", purge, r.trace))
        removed = sum(each.removed for each in done)
        return Purged(removed=removed, more=any(each.more for each in done))

    def _purge(self, table: str, purge: Callable[..., Purged], older_than: timedelta) -> Purged:
        done = self._purge_batches(purge, older_than)
        if done.removed:
            log.info(
                "expired rows purged",
                extra={"action": "rows_purged", "table": table, "count": done.removed},
            )
        return done

    def _purge_batches(self, purge: Callable[..., Purged], older_than: timedelta) -> Purged:
        removed = 0
        for _ in range(self._retention.batches_per_pass):
            began = self._clock()
            batch = purge(older_than=older_than, limit=self._retention.batch_size)
            removed += batch.removed
            if not batch.more:
                return Purged(removed=removed, more=False)
            self._rest((self._clock() - began) * REST)
        # A pass that removed nothing does not continue at once: it only walked over rows that stay.
        return Purged(removed=removed, more=removed > 0)
