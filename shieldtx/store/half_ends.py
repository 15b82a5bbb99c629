"""The end of half messages, inside of a transaction: by word, by check, or by a person."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from uuid import UUID

from sqlalchemy import Connection

from shieldtx.domain.states import LocalOutcome, OutboxStatus
from shieldtx.store.dialects import Dialect
from shieldtx.store.statements import half_messages as sql
from shieldtx.store.tables import Tables


class HalfEnds:
    """Locks half messages and lets them out, over connections of others."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._tables = tables
        self._dialect = dialect
        # One a source: a statement costs more to build than to run.
        self._commit = cache(partial(sql.commit, tables, dialect))
        self._discard = cache(partial(sql.discard, tables, dialect))

    def locked(self, connection: Connection, event_ids: Sequence[UUID]) -> dict[UUID, OutboxStatus]:
        """Lock messages, and return how they stand; those that are not there are left out."""
        statement = sql.locked(self._tables, self._dialect, event_ids)
        return {row[0]: OutboxStatus(row[1]) for row in connection.execute(statement)}

    def end(
        self,
        connection: Connection,
        event_ids: Sequence[UUID],
        source: OutboxStatus,
        outcome: LocalOutcome,
    ) -> None:
        """Let locked messages out of `source` one after the other, as their transactions ended."""
        if not event_ids:
            return
        build = self._commit if outcome is LocalOutcome.COMMIT else self._discard
        each = [sql.end_parameters(self._dialect, event_id) for event_id in event_ids]
        connection.execute(build(source), each)
