"""The purge port in memory, like the SQL store: along the ids, which grow with time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import INBOX, OUTBOX, InboxStatus, TxKind
from shieldtx.ports.retention import Purged
from tests.verification.simulation.database import Database, InboxRow, OutboxRow

FIRST_ID = UUID(int=0)
LAST_ID = UUID(int=2**128 - 1)
CLOCK_SKEW = timedelta(days=1)


class MemoryRetentionStore:
    """Walks over the tables in batches; `wall_clock` is the process's own, in seconds."""

    def __init__(self, database: Database, *, wall_clock: Callable[[], float]) -> None:
        self._database = database
        self._wall_clock = wall_clock
        self._reached: dict[str, UUID] = {}

    def purge_outbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Purge among the next `limit` outbox rows."""
        db = self._database
        return self._purge("outbox", db.outbox, OUTBOX.purgeable, older_than, limit)

    def purge_inbox(self, *, older_than: timedelta, limit: int) -> Purged:
        """Purge among the next `limit` inbox rows."""
        db = self._database
        return self._purge("inbox", db.inbox, INBOX.purgeable, older_than, limit)

    def purge_parked(self, **_limits: object) -> Purged:
        """Do nothing: no operator discards a record here."""
        return Purged(removed=0, more=False)

    def purge_audit(self, **_limits: object) -> Purged:
        """Do nothing: there is no audit."""
        return Purged(removed=0, more=False)

    def _purge(
        self,
        table: str,
        rows: Mapping[Any, OutboxRow] | Mapping[Any, InboxRow],
        purgeable: Collection[str],
        older_than: timedelta,
        limit: int,
    ) -> Purged:
        db = self._database
        after, too_young = self._reached.get(table, FIRST_ID), self._id_made(older_than)
        upto = too_young if after < too_young else LAST_ID
        span = sorted(
            (row.envelope.id, key) for key, row in rows.items() if after < row.envelope.id <= upto
        )
        end = span[limit - 1][0] if len(span) >= limit else None
        removed = 0
        for event_id, key in span:
            row = rows[key]
            if removed == limit or (end is not None and event_id > end):
                break
            if (
                row.status in purgeable
                and row.settled_at is not None
                and row.settled_at < db.now - older_than.total_seconds()
                and not db.is_passed_over(key)
                and not is_needed(self._database, row)
            ):
                db.delete(table, row)
                removed += 1
        after_the_span = FIRST_ID if upto == LAST_ID else self._id_made(-CLOCK_SKEW)
        reached = after_the_span if end is None else end
        self._reached[table] = reached
        return Purged(removed=removed, more=reached != FIRST_ID)

    def _id_made(self, ago: timedelta) -> UUID:
        milliseconds = max(0, int((self._wall_clock() - ago.total_seconds()) * 1000))
        return UUID(int=milliseconds << 80)


def is_needed(db: Database, row: OutboxRow | InboxRow) -> bool:
    """Return whether a compensation that may still arrive needs the row."""
    event = row.envelope
    awaited = {
        (r.group, r.envelope.causation_id)
        for r in db.inbox.values()
        if r.envelope.kind is TxKind.ROLLBACK
        and (r.settled_at is None or r.status is InboxStatus.DEAD)
    }
    if isinstance(row, OutboxRow):
        return event.id in {event_id for _, event_id in awaited}
    undone = row.compensated_id
    return (
        (row.group, event.id) in awaited
        or _has_caused(db, event)
        or undone in db.outbox
        or (undone is not None and (row.group, undone) in awaited)
        or any(
            r.group == row.group and r.envelope.id == undone
            for r in db.inbox.values()
            if r.envelope.kind is TxKind.COMMIT
        )
    )


def _has_caused(db: Database, event: Envelope) -> bool:
    return any(
        written.envelope.kind is TxKind.COMMIT
        and written.envelope.causation_id == event.id
        and written.envelope.causation_source == event.source
        for written in db.outbox.values()
    )
