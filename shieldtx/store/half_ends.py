"""The end of a half message, inside of a transaction: by word, by check, or by a person."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.states import LocalOutcome, OutboxStatus
from shieldtx.store.dialects import dialect_of
from shieldtx.store.statements import half as sql
from shieldtx.store.tables import Tables


def locked(
    connection: Connection, tables: Tables, event_ids: Sequence[UUID]
) -> dict[UUID, OutboxStatus]:
    """Lock half messages, and return how they stand; those that are not there are left out."""
    statement = sql.locked(tables, dialect_of(connection.dialect), event_ids)
    return {row[0]: OutboxStatus(row[1]) for row in connection.execute(statement)}


def end(
    connection: Connection,
    tables: Tables,
    event_id: UUID,
    source: OutboxStatus,
    outcome: LocalOutcome,
) -> None:
    """Let a locked message out of `source`, as its local transaction ended."""
    statement = sql.commit if outcome is LocalOutcome.COMMIT else sql.discard
    connection.execute(statement(tables, dialect_of(connection.dialect), event_id, source))
