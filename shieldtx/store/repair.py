"""The repair over SQLAlchemy: queries and changes in the database of one service."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, Engine, select

from shieldtx.domain.events import Envelope
from shieldtx.ports.hand_over import (
    Arrival,
    EventPosition,
    HandedOver,
    Key,
    LaterPositions,
    Sent,
    Sibling,
)
from shieldtx.ports.repair import Note, RepairAction, Repaired, RepairedEvent, RowSeen
from shieldtx.store.dialects import dialect_of
from shieldtx.store.hand_over import EventHandOver
from shieldtx.store.key_order import KeyOrders
from shieldtx.store.parked_events import discarded_events
from shieldtx.store.repair_audit import noted
from shieldtx.store.row_repair import RowRepair
from shieldtx.store.statements import hand_over as hand_over_sql
from shieldtx.store.statements import repair as sql
from shieldtx.store.statements import retention
from shieldtx.store.tables import Tables
from shieldtx.store.transactions import in_transaction


class SqlRepairStore:
    """Repairs rows of one service, whose name is `source` (the port RepairStore)."""

    def __init__(self, engine: Engine, tables: Tables, *, source: str) -> None:
        self._engine = engine
        self._tables = tables
        self._source = source
        self._dialect = dialect_of(engine.dialect)
        self._hand_over = EventHandOver(tables, self._dialect)
        self._orders = KeyOrders(tables, self._dialect)
        self._rows = RowRepair(engine, tables, source=source)

    def purged_until(self) -> datetime | None:
        """Return the time up to which the purge removed settled rows; None if none is recorded."""
        with self._engine.connect() as connection:
            until: datetime | None = connection.scalar(retention.purged_until(self._tables))
        return until

    def received(self, events: Sequence[RepairedEvent]) -> set[RepairedEvent]:
        """Return the given events that the inbox contains."""
        if not events:
            return set()
        ids = sorted({event.event_id for event in events})
        groups = sorted({event.group for event in events})
        statement = sql.received(self._tables, self._dialect, ids, groups)
        with self._engine.connect() as connection:
            found = {tuple(row) for row in connection.execute(statement)}
        return {event for event in events if (event.event_id, event.group, event.source) in found}

    def taken_back(self, events: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Return the events of which the service has written or received a rollback."""
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
        # A rollback without a source may belong to any event with its id.
        return {event for event in events if event in known or (event[0], None) in known}

    def discarded(
        self, events: Sequence[tuple[UUID, str]], *, group: str | None = None
    ) -> set[tuple[UUID, str]]:
        """Return the events of which an operator has discarded a parked record."""
        if not events:
            return set()
        with self._engine.connect() as connection:
            return discarded_events(
                connection, self._tables, self._dialect, group=group, events=events
            )

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        with self._engine.connect() as connection:
            now: datetime = connection.execute(select(self._dialect.now())).scalar_one()
        return now

    def positions(self, ids: Sequence[UUID]) -> Mapping[UUID, EventPosition]:
        """Return the positions of these events in the outbox."""
        if not ids:
            return {}
        with self._engine.connect() as connection:
            return self._orders.positions(connection, ids)

    def siblings(
        self,
        keys: Collection[Key],
        *,
        since: datetime | None = None,
        later: LaterPositions | None = None,
    ) -> Iterator[Sibling]:
        """Yield the service's events of these keys that were sent, or are to be sent."""
        if not keys:
            return
        with self._engine.connect() as connection:
            yield from self._orders.siblings(
                connection, self._source, keys, since=since, later=later
            )

    def receivers(self, source: str) -> set[tuple[str, str]]:
        """Return the groups that have received events of a source, with the event types."""
        with self._engine.connect() as connection:
            found = connection.execute(hand_over_sql.receivers(self._tables, source=source))
            return {(group, event_type) for group, event_type in found}

    def latest_received(
        self, group: str, source: str, keys: Collection[Key]
    ) -> Mapping[Key, datetime]:
        """Return when the latest event of these keys that a group has received was written."""
        if not keys:
            return {}
        with self._engine.connect() as connection:
            return self._orders.latest_received(connection, group, source, keys)

    def received_after(
        self, group: str, source: str, after: Mapping[Key, datetime], *, since: datetime | None
    ) -> Iterator[Arrival]:
        """Yield the events of these keys that a group received, written at `after` or later."""
        if not after:
            return
        with self._engine.connect() as connection:
            yield from self._orders.received_after(connection, group, source, after, since)

    def count_received(
        self, group: str, source: str, keys: Collection[Key], *, since: datetime
    ) -> Mapping[Key, int]:
        """Return by key how many events that a group received are open or settled since then."""
        if not keys:
            return {}
        with self._engine.connect() as connection:
            return self._orders.count_received(connection, group, source, keys, since)

    def sent(self, rows: Sequence[RowSeen], *, payloads: bool) -> Sent:
        """Return the events of the outbox rows that have not changed since they were read."""
        with self._engine.connect() as connection:
            return self._hand_over.sent(connection, rows, payloads=payloads)

    def hand_over(
        self,
        group: str,
        envelopes: Sequence[Envelope],
        *,
        note: Note,
        in_order: bool,
        dry_run: bool,
    ) -> HandedOver:
        """Store events in the inbox of a group, in one transaction; a dry run only reports.

        A consumer may store the same events in another order: then the server aborts one of the two
        transactions. If it aborts this transaction, this method repeats it.
        """
        if dry_run:
            with self._engine.connect() as connection:
                return self._hand_over.try_out(connection, group, envelopes, in_order=in_order)

        def store(connection: Connection) -> HandedOver:
            handed = self._hand_over.store(connection, group, envelopes, in_order=in_order)
            if handed.done:
                events = {group: sorted(handed.done)}
                action = RepairAction.HAND_OVER
                connection.execute(noted(self._tables, self._dialect, action, events, note))
            return handed

        return in_transaction(self._engine, store, doing="hand-over") if envelopes else HandedOver()

    def repair(
        self, action: RepairAction, rows: Sequence[RowSeen], *, note: Note, dry_run: bool
    ) -> Repaired:
        """Repair the rows that have not changed, in one transaction; a dry run only reports."""
        return self._rows.repair(action, rows, note=note, dry_run=dry_run)
