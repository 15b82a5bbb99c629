"""The trace over SQLAlchemy: the entries of tracers, and all rows of an event in the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Engine, Row

from shieldtx.domain.events import first_id_of, storable
from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.ports.tracing import (
    LONGEST_TRACED_REASON,
    MAX_TRACED_ATTEMPTS,
    MAX_TRACED_EVENTS,
    Facts,
    Identity,
    KnownRow,
    TracedAttempt,
    TraceEntry,
)
from shieldtx.store.business_keys import events_of_business_key
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import status
from shieldtx.store.statements import trace as sql
from shieldtx.store.tables import Tables

BEFORE_EFFECT: Final = timedelta(minutes=5)
AFTER_EFFECT: Final = timedelta(minutes=15)
"""The span around a handler's effect in which the ids of the events that it wrote are searched."""


class SqlTraceStore:
    """Stores entries, and reads the facts of an event (the ports TraceStore and TraceReader)."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        self._engine = engine
        self._tables = tables
        self._dialect = dialect_of(engine.dialect)
        self._now = status.now(self._dialect)
        self._insert = sql.insert_entries(tables, self._dialect)

    def write(self, entries: Sequence[TraceEntry], *, clock: Callable[[], float]) -> None:
        """Store entries, in one transaction, with times of the database's clock."""
        with self._engine.begin() as connection:
            now: datetime = connection.scalars(self._now).one()
            then = clock()
            ages = [timedelta(seconds=then - e.ended) for e in entries]
            columns = _columns_of(entries) | {"at": [now - age for age in ages]}
            connection.execute(self._insert, self._dialect.unnumbered_rows_parameters(columns))

    def facts(self, event_id: UUID) -> Facts:
        """Return all facts of an event in this database."""
        t = self._tables
        with self._engine.connect() as connection:
            connection.execution_options(isolation_level=self._dialect.snapshot_isolation)
            written = connection.execute(sql.written(t, event_id)).one_or_none()
            received = [_received(r) for r in connection.execute(sql.received(t, event_id))]
            marks = connection.execute(sql.entries(t, event_id, limit=MAX_TRACED_ATTEMPTS)).all()
            caused = {*connection.scalars(sql.rollbacks(t, event_id))}
            for row in received:
                caused.update(self._follow_ups(connection, row))
        return Facts(
            written=None if written is None else _written(written),
            received=received,
            marks=[_mark(row) for row in reversed(marks)],
            caused=sorted(caused),
        )

    def unsettled(self) -> Sequence[KnownRow]:
        """Return all rows without an outcome, of outbox and inbox: for the tests of a service."""
        t = self._tables
        with self._engine.connect() as connection:
            written = [_written(row) for row in connection.execute(sql.open_written(t))]
            return written + [_received(row) for row in connection.execute(sql.open_received(t))]

    def events_of(self, biz_key: str, *, event_type: str | None = None) -> Sequence[UUID]:
        """Return the ids of the events with a business key in this database."""
        with self._engine.connect() as connection:
            return events_of_business_key(
                connection, self._tables, biz_key=biz_key, event_type=event_type
            )

    def _follow_ups(self, connection: Connection, row: KnownRow) -> Sequence[UUID]:
        """Return the ids of events that the handler wrote; ids grow with time: a span suffices."""
        if row.status is not InboxStatus.PROCESSED or row.settled_at is None:
            return []
        statement = sql.follow_ups(
            self._tables,
            row.identity.event_id,
            after=first_id_of((row.settled_at - BEFORE_EFFECT).timestamp()),
            before=first_id_of((row.settled_at + AFTER_EFFECT).timestamp()),
            limit=MAX_TRACED_EVENTS,
        )
        return connection.scalars(statement).all()


def _columns_of(entries: Sequence[TraceEntry]) -> dict[str, list[Any]]:
    return {
        "event_id": [e.event_id for e in entries],
        "consumer_group": [e.group for e in entries],
        "attempt": [e.attempt for e in entries],
        "outcome": [e.outcome for e in entries],
        "waited": [e.waited for e in entries],
        "took": [e.took for e in entries],
        "record_partition": [e.partition for e in entries],
        "record_offset": [e.offset for e in entries],
        "reason": [
            storable(e.reason, LONGEST_TRACED_REASON) if e.reason else None for e in entries
        ],
    }


def _identity(row: Row[*tuple[Any, ...]]) -> Identity:
    return Identity(
        event_id=row.event_id,
        type=row.event_type,
        source=row.source,
        topic=row.topic,
        kind=TxKind(row.tx_kind),
        operation=row.operation,
        key=row.key,
        biz_key=row.biz_key,
        causation_id=row.causation_id,
        causation_source=row.causation_source,
        traceparent=row.traceparent,
    )


def _written(row: Row[*tuple[Any, ...]]) -> KnownRow:
    return KnownRow(
        identity=_identity(row),
        group=None,
        status=OutboxStatus(row.status),
        attempts=row.attempts,
        began_at=row.created_at,
        due_at=row.due_at,
        lease_until=row.lease_until,
        settled_at=row.settled_at,
        reason=row.last_error or "",
    )


def _received(row: Row[*tuple[Any, ...]]) -> KnownRow:
    return KnownRow(
        identity=_identity(row),
        group=row.consumer_group,
        status=InboxStatus(row.status),
        attempts=row.attempts,
        began_at=row.received_at,
        due_at=row.due_at,
        lease_until=row.lease_until,
        settled_at=row.settled_at,
        reason=row.last_error or "",
        partition=row.record_partition,
        offset=row.record_offset,
        compensated_id=row.compensated_id,
    )


def _mark(row: Row[*tuple[Any, ...]]) -> TracedAttempt:
    return TracedAttempt(
        group=row.consumer_group,
        attempt=row.attempt,
        outcome=row.outcome,
        at=row.at,
        waited=row.waited,
        took=row.took,
        partition=row.record_partition,
        offset=row.record_offset,
        reason=row.reason or "",
    )
