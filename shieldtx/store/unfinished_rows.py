"""Finds the inbox rows that are not settled: those that are due, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, Select

from shieldtx.domain.events import Envelope
from shieldtx.domain.states import TxKind
from shieldtx.ports.inbox import Handled, Origin
from shieldtx.store.dialects import autocommit_engine, dialect_of
from shieldtx.store.statements import inbox_unfinished
from shieldtx.store.statements.envelope_columns import envelope_of
from shieldtx.store.tables import Tables


class UnfinishedRows:
    """Reads the unfinished rows of consumer groups, each time in a transaction of its own."""

    def __init__(self, engine: Engine, tables: Tables, *, batch_bytes: int) -> None:
        """Find due rows with payloads of up to `batch_bytes` at a time, or one larger row."""
        dialect = dialect_of(engine.dialect)
        self._batch_bytes = batch_bytes
        self._autocommit = autocommit_engine(engine)
        self._due = inbox_unfinished.due(tables, dialect)
        self._longest_due = inbox_unfinished.longest_due(tables, dialect)
        self._newest_unattempted = inbox_unfinished.newest_unattempted(tables, dialect)
        self._pending = inbox_unfinished.pending(tables, dialect)
        self._unfinished = inbox_unfinished.unfinished(tables, dialect)
        self._unhandled = inbox_unfinished.unhandled(tables, dialect)

    def due(self, group: str, *, handled: Handled, limit: int) -> Sequence[Envelope]:
        """Return rows that may be processed now, of the types that the worker handles."""
        parameters = inbox_unfinished.group_parameters(group, handled, limit, self._batch_bytes)
        with self._autocommit.begin() as connection:
            rows = connection.execute(self._due, parameters)
            return [envelope_of(row) for row in rows]

    def longest_due(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the row of these types that has been due for longest."""
        return self._one(self._longest_due, group, handled)

    def newest_unattempted(self, group: str, *, handled: Handled) -> Envelope | None:
        """Return the row of these types that arrived last, of those without an attempt."""
        return self._one(self._newest_unattempted, group, handled)

    def _one(self, statement: Select[Any], group: str, handled: Handled) -> Envelope | None:
        parameters = inbox_unfinished.group_parameters(group, handled)
        with self._autocommit.begin() as connection:
            row = connection.execute(statement, parameters).one_or_none()
        return None if row is None else envelope_of(row)

    def pending(self, group: str, *, handled: Handled) -> Mapping[Origin, int]:
        """Count the unfinished rows of these types by their origin."""
        parameters = inbox_unfinished.group_parameters(group, handled)
        with self._autocommit.begin() as connection:
            rows = connection.execute(self._pending, parameters).all()
        return {(topic, TxKind(kind), partition): rows for topic, kind, partition, rows in rows}

    def count(self, group: str, *, limit: int) -> int:
        """Count the unfinished rows of all types, `limit` rows at most."""
        given = inbox_unfinished.group_parameters(group, frozenset(), limit)
        with self._autocommit.begin() as connection:
            return int(connection.scalars(self._unfinished, given).one())

    def unhandled(
        self, group: str, *, handled: Handled, limit: int
    ) -> Mapping[tuple[str, TxKind], int]:
        """Count the unfinished rows of all other types."""
        parameters = inbox_unfinished.group_parameters(group, handled, limit)
        with self._autocommit.begin() as connection:
            rows = connection.execute(self._unhandled, parameters).all()
        return {(event_type, TxKind(kind)): rows for event_type, kind, rows in rows}
