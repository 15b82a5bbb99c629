"""Repairs of rows in place: a batch is one transaction, which includes its audit entry.

The rows are read and locked first, and rows that changed since the run saw them are left alone. The
repair skips locked rows, because a relay, a consumer or another repair is changing them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, Engine

from shieldtx.domain.events import rollback_of
from shieldtx.ports.outbox import Posting
from shieldtx.ports.repair import Note, RepairAction, Repaired, RowSeen
from shieldtx.store.dialects import dialect_of
from shieldtx.store.repair_audit import noted
from shieldtx.store.repair_batch import Batch, RowNow, counted, key_of, sort
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import repair as sql
from shieldtx.store.statements.envelope_columns import envelope_of
from shieldtx.store.statements.repair import InboxKey
from shieldtx.store.tables import Tables
from shieldtx.store.transactions import in_transaction

_OUTBOX: Final = "outbox"
_NO_REASON: Final = "the group gave the event up"


class RowRepair:
    """Repairs rows of one service, whose name is `source`."""

    def __init__(self, engine: Engine, tables: Tables, *, source: str) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._source = source
        self._writers: Mapping[RepairAction, Callable[[Connection, Batch], None]] = {
            RepairAction.PUBLISH_AGAIN: self._publish_again,
            RepairAction.RELEASE_EVENT: self._release_events,
            RepairAction.RELEASE_ATTEMPT: self._release_attempts,
            RepairAction.RAISE_ROLLBACK: self._raise_rollbacks,
            RepairAction.REPLAY_EVENT: self._replay_events,
            RepairAction.REPLAY_COMPENSATION: self._replay_compensations,
        }

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, dry_run: bool
    ) -> Repaired:
        """Repair the rows that have not changed, in one transaction; a dry run only reports."""
        if not rows:
            return Repaired()
        if dry_run:
            with self._engine.connect() as connection:
                batch = self._classify(connection, action, rows, lock=False)
            return counted(batch)

        def write(connection: Connection) -> Batch:
            batch = self._classify(connection, action, rows, lock=True)
            if batch.ready:
                self._writers[action](connection, batch)
            if batch.ready:
                events: dict[str, list[UUID]] = defaultdict(list)
                for seen, _ in batch.ready:
                    events[seen.group or _OUTBOX].append(seen.event_id)
                connection.execute(noted(self._tables, self._dialect, action, events, note))
            return batch

        return counted(in_transaction(self._engine, write, doing=f"repair {action}"))

    def _classify(
        self, connection: Connection, action: RepairAction, rows: Sequence[RowSeen], *, lock: bool
    ) -> Batch:
        """Sort a batch by the present status of its rows."""
        read = self._outbox_rows if action in _ON_THE_OUTBOX else self._inbox_rows
        batch = sort(action, rows, read(connection, rows, lock=lock))
        if action is RepairAction.RAISE_ROLLBACK and batch.ready:
            self._leave_out_taken_back(connection, batch)
        return batch

    def _outbox_rows(
        self, connection: Connection, rows: Sequence[RowSeen], *, lock: bool
    ) -> dict[InboxKey, RowNow]:
        ids = sorted({row.event_id for row in rows})
        statement = sql.outbox_rows(self._tables, self._dialect, ids, lock=lock)
        found = {row.event_id: row for row in connection.execute(statement)}
        return {key_of(row): found[row.event_id] for row in rows if row.event_id in found}

    def _inbox_rows(
        self, connection: Connection, rows: Sequence[RowSeen], *, lock: bool
    ) -> dict[InboxKey, RowNow]:
        keys = sorted({key_of(row) for row in rows})
        found = connection.execute(sql.inbox_rows(self._tables, self._dialect, keys, lock=lock))
        return {(row.event_id, row.consumer_group, row.source): row for row in found}

    def _leave_out_taken_back(self, connection: Connection, batch: Batch) -> None:
        """Keep one row per event without a rollback: one rollback suffices for all groups."""
        statement = sql.taken_back(self._tables, self._dialect, batch.ids)
        known = {(event_id, source) for event_id, source in connection.execute(statement)}

        def is_first(seen: RowSeen) -> bool:
            event = (seen.event_id, seen.source)
            is_new = event not in known
            known.add(event)
            return is_new

        batch.keep(is_first)

    # --- one method per kind of repair -----------------------------------------------------------

    def _publish_again(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.publish_again(self._tables, self._dialect, batch.ids))

    def _release_events(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.release_events(self._tables, self._dialect, batch.ids))

    def _release_attempts(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.release_attempts(self._tables, self._dialect, batch.keys))

    def _raise_rollbacks(self, connection: Connection, batch: Batch) -> None:
        """Write rollbacks like the consumer, except rollbacks that another repair has written."""
        d, statement = self._dialect, outbox_sql.insert_unknown(self._tables, self._dialect)
        shards = connection.scalars(sql.count_shards(self._tables)).one()
        written: set[UUID] = set()
        for _, now in batch.ready:
            original = envelope_of(now)
            rollback = rollback_of(
                original,
                source=self._source,
                reason=now.last_error or _NO_REASON,
                event_id=pending_rollback_id(original.id, original.source, self._source),
            )
            row = outbox_sql.parameters_of(Posting(envelope=rollback), d, shards=shards)
            if connection.execute(statement, row).one_or_none() is not None:
                written.add(original.id)
        batch.keep(lambda seen: seen.event_id in written)

    def _replay_events(self, connection: Connection, batch: Batch) -> None:
        for event_id in batch.ids:
            connection.execute(outbox_sql.replay(self._tables, self._dialect, event_id)).one()

    def _replay_compensations(self, connection: Connection, batch: Batch) -> None:
        t, d = self._tables, self._dialect
        for event_id, group, source in batch.keys:
            connection.execute(
                inbox_sql.replay(t, d, group=group, event_id=event_id, source=source)
            ).one()


def pending_rollback_id(event_id: UUID, source: str, by: str) -> UUID:
    """Return the id of the missing rollback of the service `by` for an event: always the same id.

    So two repairs can never raise two different rollbacks. The id is a UUIDv7 (RFC 9562) of the
    event's own time, which suits the purge, with a digest in place of the random bits.
    """
    digest = hashlib.sha256("\0".join((source, str(event_id), by)).encode()).digest()
    random = int.from_bytes(digest[:10], "big")
    time, low = event_id.int >> 80, random & (2**62 - 1)
    return UUID(int=time << 80 | 0x7 << 76 | (random >> 64 & 0xFFF) << 64 | 0b10 << 62 | low)


_ON_THE_OUTBOX = {
    RepairAction.PUBLISH_AGAIN,
    RepairAction.RELEASE_EVENT,
    RepairAction.REPLAY_EVENT,
}
