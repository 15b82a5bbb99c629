"""The barrier of half messages: the local transaction enters it, a check reads it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, UpdateBase, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from shieldtx.domain.states import LocalOutcome
from shieldtx.errors import LateTransaction, TransactionRefused
from shieldtx.ports.transaction_marks import TransactionState
from shieldtx.store.admission import admit, may_have_written
from shieldtx.store.dialects import autocommit_engine, dialect_of
from shieldtx.store.statements import barrier as sql
from shieldtx.store.table_location import TableLocation
from shieldtx.store.tables import Tables
from shieldtx.store.transaction_marks import SqlTransactionMarks

_IN_A_BLOCK = (
    "the barrier would be in a block of the driver's connection, whose outcome the session does "
    "not observe, and be lost when that alone is rolled back: guard the transaction outside of it"
)
_IN_A_PIPELINE = (
    "the connection is in a pipeline of its driver, whose answers come too late to know whether "
    "the barrier is still in the transaction: commit it outside of the pipeline"
)


class SqlBarrier:
    """Enters in a caller's transaction, and checks in its own transactions (the port Barrier)."""

    def __init__(self, engine: Engine, tables: Tables, *, patience: timedelta) -> None:
        """Wait at most `patience` for a local transaction in flight."""
        self._dialect = dialect_of(engine.dialect)
        self._engine = engine.execution_options(isolation_level=self._dialect.engine_isolation)
        self._autocommit = autocommit_engine(engine)
        self._location = TableLocation(self._autocommit, tables.barrier)
        self._tables = tables
        self._patience = patience
        self._marks = SqlTransactionMarks()
        # Sessions with read replicas treat UPDATE and DELETE as writes, but not all know INSERT.
        self.routed_by: UpdateBase = update(tables.barrier)

    def admit(self, connection: Connection) -> None:
        """Raise TransactionRefused if the connection commits each statement by itself.

        Raise it too if `schema_translate_map` redirects the barrier, and in a block of the driver.
        This runs no statement.
        """
        admit(
            connection,
            self._tables.barrier,
            or_else="the barrier would commit before the local transaction does",
        )
        if self._marks.is_in_block(connection):
            raise TransactionRefused(_IN_A_BLOCK)

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; True for unknown databases.

        Raises TransactionRefused if the server cannot be queried.
        """
        return may_have_written(connection)

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection leads to the table of the barrier."""
        return self._location.is_reached_by(connection)

    def enter(self, connection: Connection, event_ids: Sequence[UUID]) -> None:
        """Tie the outcome of half messages to the open transaction of the connection.

        Raises LateTransaction if one of the messages is already resolved. Raises TransactionRefused
        if the connection commits each statement by itself, or leads to another database.
        """
        self.admit(connection)
        self._location.check(connection)
        dialect = dialect_of(connection.dialect)
        # All transactions use the same order, which prevents deadlocks.
        rows = [{"event_id": each, "mark": _mark_of(each)} for each in sorted(event_ids)]
        try:
            connection.execute(sql.enter(self._tables, dialect), rows)
        except IntegrityError as error:
            ids = ", ".join(map(str, event_ids))
            raise LateTransaction(
                f"one of the half messages {ids} has been resolved already: a check found no local "
                "transaction, or this one was entered twice. Roll it back, and begin again with a "
                "new half message"
            ) from error

    def has_entered(self, connection: Connection, event_ids: Collection[UUID]) -> bool:
        """Whether the open transaction has entered, and has not rolled the entry back.

        On SQLite, this is True for a following transaction too. True after a failed statement: no
        query is possible, and the transaction cannot commit.
        """
        if self._marks.state(connection) is TransactionState.FAILED:
            return True
        if sql.has_marks(dialect_of(connection.dialect)):
            # The caller's connection may fetch through a server-side cursor.
            at_once = {"stream_results": False}
            result = connection.execute(sql.MARKS, execution_options=at_once)
            if not result.returns_rows:
                raise TransactionRefused(_IN_A_PIPELINE)
            marks = result.scalar_one() or ""
            return all(_mark_of(each) in marks for each in event_ids)
        found = connection.scalars(sql.entered(self._tables, [*event_ids]))
        return set(found) >= set(event_ids)

    def outcome_of(self, event_id: UUID) -> LocalOutcome:
        """Return the outcome of the local transaction; if it has not entered, it no longer can."""
        t, d = self._tables, self._dialect
        try:
            # A row never changes once it is there. So a local transaction that has committed, as
            # most have, needs no write.
            ended = self.visible_outcome(event_id)
            if ended is not LocalOutcome.UNKNOWN:
                return ended
            with (
                self._engine.begin() as connection,
                d.lock_timeout(connection, self._patience),
            ):
                if connection.scalar(sql.close(t, d, event_id)) is not None:
                    return LocalOutcome.ROLLBACK
                return _end_in(connection.scalar(sql.found(t, event_id)))
        except DBAPIError as error:
            if d.is_lock_timeout(error):
                return LocalOutcome.UNKNOWN
            raise

    def visible_outcome(self, event_id: UUID) -> LocalOutcome:
        """Return the outcome of the local transaction as far as it is visible; write nothing."""
        with self._autocommit.begin() as connection:
            return _end_in(connection.scalar(sql.found(self._tables, event_id)))


def _mark_of(event_id: UUID) -> str:
    return f" {event_id};"


def _end_in(row: Any) -> LocalOutcome:
    """Return the outcome that a row proves; UNKNOWN if neither transaction nor check wrote it."""
    if row is None:
        return LocalOutcome.UNKNOWN
    return LocalOutcome.COMMIT if row else LocalOutcome.ROLLBACK
