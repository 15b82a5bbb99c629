"""The repair over SQLAlchemy: a batch is one transaction, and its audit entry is part of it.

The rows are read and locked first, and what has moved since the run saw it is left alone. Locks are
never waited for: a relay, a consumer or another repair is moving the row.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, Engine, select

from shieldtx.domain.events import Envelope, rollback_of
from shieldtx.ports.hand_over import Arrival, HandedOver, Key, Line, Sent
from shieldtx.ports.outbox import Posting
from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RowSeen
from shieldtx.store.dialects import dialect_of
from shieldtx.store.hand_over import EventHandOver
from shieldtx.store.key_order import KeyOrders
from shieldtx.store.repair_batch import Batch, RowNow, counted, key_of, sort
from shieldtx.store.statements import audit, retention
from shieldtx.store.statements import hand_over as hand_over_sql
from shieldtx.store.statements import inbox as inbox_sql
from shieldtx.store.statements import outbox as outbox_sql
from shieldtx.store.statements import repair as sql
from shieldtx.store.statements.envelope_columns import envelope_of
from shieldtx.store.statements.repair import InboxKey
from shieldtx.store.tables import Tables

AUDIT_ACTION: Final = "repair"
_OUTBOX: Final = "outbox"
_NO_REASON: Final = "the group gave the event up"


class SqlRepairStore:
    """Repairs rows of one service, whose name is `source` (the port RepairStore)."""

    def __init__(self, engine: Engine, tables: Tables, *, source: str) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._source = source
        self._hand_over = EventHandOver(tables, self._dialect)
        self._orders = KeyOrders(tables, self._dialect)
        self._writers: Mapping[RepairAction, Callable[[Connection, Batch], None]] = {
            RepairAction.PUBLISH_AGAIN: self._publish_again,
            RepairAction.RELEASE_EVENT: self._release_events,
            RepairAction.RELEASE_ATTEMPT: self._release_attempts,
            RepairAction.RAISE_ROLLBACK: self._raise_rollbacks,
            RepairAction.REPLAY_EVENT: self._replay_events,
            RepairAction.REPLAY_COMPENSATION: self._replay_compensations,
        }

    def purged_until(self) -> datetime | None:
        """Return up to which time its purge has removed settled rows; None: no purge noted any."""
        with self._engine.connect() as connection:
            until: datetime | None = connection.scalar(retention.purged_until(self._tables))
        return until

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        """Return which of these the inbox holds."""
        if not events:
            return set()
        keys = [(event.event_id, event.group, event.source) for event in events]
        with self._engine.connect() as connection:
            found = connection.execute(sql.received(self._tables, keys)).all()
        return {RepairedEvent(event_id=i, group=group, source=source) for i, group, source in found}

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Return which events it has written or received a rollback of."""
        if not events:
            return set()
        ids = sorted({event_id for event_id, _ in events})
        t, d = self._tables, self._dialect
        with self._engine.connect() as connection:
            found = [
                *connection.execute(sql.not_discarded_rollbacks(t, d, ids)),
                *connection.execute(sql.received_rollbacks(t, d, ids)),
            ]
        known = {tuple(row) for row in found}
        # One without a source may be of any event under its id.
        return {event for event in events if event in known or (event[0], None) in known}

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        with self._engine.connect() as connection:
            now: datetime = connection.execute(select(self._dialect.now())).scalar_one()
        return now

    def lines(self, ids: Sequence[UUID]) -> Mapping[UUID, Line]:
        """Return where these events stand in the outbox."""
        if not ids:
            return {}
        with self._engine.connect() as connection:
            return self._orders.lines(connection, ids)

    def sent_after(self, after: Mapping[Key, int]) -> Iterator[tuple[Key, int]]:
        """Yield the numbers of events of these keys that were sent, and are above the one given."""
        if not after:
            return
        with self._engine.connect() as connection:
            yield from self._orders.sent_after(connection, after)

    def receivers(self, source: str) -> set[tuple[str, str]]:
        """Return which groups have received events of a source, by group and event type."""
        with self._engine.connect() as connection:
            found = connection.execute(hand_over_sql.receivers(self._tables, source=source))
            return {(group, event_type) for group, event_type in found}

    def latest_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime | None = None
    ) -> Mapping[Key, datetime]:
        """Return when the latest event of these keys that a group has received was written."""
        if not keys:
            return {}
        with self._engine.connect() as connection:
            return self._orders.latest_received(connection, group, source, keys, since)

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Sequence[Arrival]:
        """Return what a group has received of these keys that was written then or later."""
        if not after:
            return []
        with self._engine.connect() as connection:
            return self._orders.received_after(connection, group, source, after, since)

    def sent(self, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        """Read the events of those rows of the outbox that still are as they were seen."""
        with self._engine.connect() as connection:
            return self._hand_over.sent(connection, rows, payloads=payloads)

    def hand_over(
        self, group: str, parts: Iterable[Sequence[Envelope]], *, note: Note, dry_run: bool
    ) -> HandedOver:
        """Store events in the inbox of a group, in one transaction; or only say what that would do.

        A part is let go before the next one is asked for.
        """
        handed = HandedOver()
        if dry_run:
            with self._engine.connect() as connection:
                for part in parts:
                    handed = handed.plus(self._hand_over.try_out(connection, group, part))
            return handed
        with self._engine.begin() as connection:
            for part in parts:
                handed = handed.plus(self._hand_over.store(connection, group, part))
                del part
            if handed.done:
                events = {group: [str(event_id) for event_id in sorted(handed.done)]}
                self._note(connection, RepairAction.HAND_OVER, events, note)
        return handed

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, dry_run: bool
    ) -> Repaired:
        """Repair what is as it was seen, in one transaction; or only say what that would be."""
        if not rows:
            return Repaired()
        if dry_run:
            with self._engine.connect() as connection:
                batch = self._classify(connection, action, rows, lock=False)
            return counted(batch)
        with self._engine.begin() as connection:
            batch = self._classify(connection, action, rows, lock=True)
            if batch.ready:
                self._writers[action](connection, batch)
            if batch.ready:
                events: dict[str, list[str]] = defaultdict(list)
                for seen, _ in batch.ready:
                    events[seen.group or _OUTBOX].append(str(seen.event_id))
                self._note(connection, action, events, note)
        return counted(batch)

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
        """Of the groups of a service that gave an event up, one rollback speaks for all."""
        statement = sql.taken_back(self._tables, self._dialect, batch.ids)
        known = {(event_id, source) for event_id, source in connection.execute(statement)}

        def is_first(seen: RowSeen) -> bool:
            event = (seen.event_id, seen.source)
            is_new = event not in known
            known.add(event)
            return is_new

        batch.keep(is_first)

    # --- one a kind of repair --------------------------------------------------------------------

    def _publish_again(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.publish_again(self._tables, self._dialect, batch.ids))

    def _release_events(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.release_events(self._tables, self._dialect, batch.ids))

    def _release_attempts(self, connection: Connection, batch: Batch) -> None:
        connection.execute(sql.release_attempts(self._tables, self._dialect, batch.keys))

    def _raise_rollbacks(self, connection: Connection, batch: Batch) -> None:
        """Write each as the consumer would have, but for those that another repair writes now."""
        d, statement = self._dialect, outbox_sql.insert_unknown(self._tables, self._dialect)
        shards = connection.scalars(sql.count_shards(self._tables)).one()
        written: set[UUID] = set()
        for _, now in batch.ready:
            original = envelope_of(now)
            rollback = rollback_of(
                original,
                source=self._source,
                reason=now.last_error or _NO_REASON,
                event_id=owed_rollback_id(original.id, original.source, self._source),
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

    def _note(
        self,
        connection: Connection,
        action: RepairAction,
        events: Mapping[str, Sequence[str]],
        note: Note,
    ) -> None:
        """Write down who did what to which rows, by group; never what is in them."""
        detail = {"verdict": note.verdict, "action": action, "events": events}
        connection.execute(
            audit.record(
                self._tables,
                self._dialect,
                who=note.who,
                action=AUDIT_ACTION,
                subject=f"reconciliation run {note.run_id}",
                detail=json.dumps(detail, ensure_ascii=False),
            )
        )


def owed_rollback_id(event_id: UUID, source: str, by: str) -> UUID:
    """Return the id of the rollback that the service `by` owes for an event: always the same one.

    So two repairs can never raise two of them that differ. It is a UUIDv7 (RFC 9562) of the event's
    own time, as the purge likes ids best, with a digest in place of what is random.
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
