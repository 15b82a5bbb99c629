"""The rows of a compensation: the original of a rollback, its tombstone, its cause."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import InboxStatus, TxKind
from shieldtx.ports.inbox import Attempt, Original
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import compensation as sql
from shieldtx.store.statements.envelope_columns import ENVELOPE_WIDTH, envelope_of, values_of
from shieldtx.store.tables import Tables


class CompensationRows:
    """Finds and writes these rows, over the connection of an attempt's effect."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect

    def original(
        self, connection: Connection, attempt: Attempt, *, written_here: bool
    ) -> Original | None:
        """Find and lock the event that a rollback takes back; None if there is none.

        With `written_here`, this service wrote the event: its outbox has it, otherwise the inbox.
        """
        event_id = attempt.envelope.causation_id
        if event_id is None:
            return None
        if written_here:
            # The lock on the row is only a shared lock.
            self._dialect.lock_compensation(connection, attempt.group, event_id)
        row = connection.execute(
            self._select_original(attempt, event_id, written_here=written_here)
        ).one_or_none()
        if row is None:
            return None
        compensated = connection.scalars(
            sql.is_compensated(
                self._tables, attempt.group, event_id, attempt.envelope.causation_source
            )
        ).one()
        return Original(
            envelope=envelope_of(row),
            status=None if written_here else InboxStatus(row[ENVELOPE_WIDTH]),
            compensated=bool(compensated),
        )

    def _select_original(
        self, attempt: Attempt, event_id: UUID, *, written_here: bool
    ) -> Select[Any]:
        t, source = self._tables, attempt.envelope.causation_source
        if written_here:
            return sql.own_original(t, event_id, source)
        return sql.received_original(t, attempt.group, event_id, source or "")

    def fence(self, connection: Connection, attempt: Attempt) -> bool:
        """Store the tombstone of an event whose rollback came first; False if the event is here."""
        rollback = attempt.envelope
        if rollback.causation_id is None or rollback.causation_source is None:
            return False
        tombstone = rollback.evolve(
            id=rollback.causation_id,
            source=rollback.causation_source,
            kind=TxKind.COMMIT,
            biz_key=None,
            payload="null",
            causation_id=rollback.id,
            causation_source=rollback.source,
        )
        row = (
            values_of(tombstone)
            | self._dialect.next_in_sequence()
            | {"consumer_group": attempt.group, "event_time": rollback.time}
        )
        statement = sql.fence(self._tables, self._dialect)
        return connection.execute(statement, row).one_or_none() is not None

    def fence_parked(self, connection: Connection, attempt: Attempt) -> None:
        """Settle the DEAD event of a rollback as FENCED; its row is locked, and so is DEAD."""
        event_id, source = attempt.envelope.causation_id, attempt.envelope.causation_source
        row: dict[str, Any] = {
            "group": attempt.group,
            "event_id": event_id,
            "source": source,
        }
        connection.execute(sql.fence_parked(self._tables, self._dialect, **row)).one()

    def cause(self, connection: Connection, envelope: Envelope) -> Envelope | None:
        """Return the received event, or rollback, whose handler wrote `envelope`."""
        if envelope.causation_id is None or envelope.causation_source is None:
            return None
        statement = sql.received_by_any_group(
            self._tables, envelope.causation_id, envelope.causation_source
        )
        row = connection.execute(statement).one_or_none()
        return None if row is None else envelope_of(row)
