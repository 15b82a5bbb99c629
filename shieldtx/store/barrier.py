"""The barrier of half messages: the local transaction enters it, a check asks it."""

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
    """Enters a caller's transaction, and asks in transactions of its own (the port Barrier)."""

    def __init__(self, engine: Engine, tables: Tables, *, patience: timedelta) -> None:
        """Wait for a local transaction in flight for `patience` at most."""
        self._dialect = dialect_of(engine.dialect)
        self._engine = engine.execution_options(isolation_level=self._dialect.engine_isolation)
        self._autocommit = autocommit_engine(engine)
        self._location = TableLocation(self._autocommit, tables.barrier)
        self._tables = tables
        self._patience = patience
        self._marks = SqlTransactionMarks()
        # Sessions that read from replicas take UPDATE and DELETE for writing; not all know INSERT.
        self.routed_by: UpdateBase = update(tables.barrier)

    def admit(self, connection: Connection) -> None:
        """Raise TransactionRefused when the connection commits each statement by itself.

        Also where its `schema_translate_map` redirects the barrier, and in a block of its driver.
        No statement is run.
        """
        admit(
            connection,
            self._tables.barrier,
            or_else="the barrier would commit before the local transaction does",
        )
        if self._marks.is_in_block(connection):
            raise TransactionRefused(_IN_A_BLOCK)

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; of a foreign one, yes.

        Raises TransactionRefused where the server cannot be asked.
        """
        return may_have_written(connection)

    def is_reached_by(self, connection: Connection) -> bool:
        """Whether a connection leads to the table of the barrier."""
        return self._location.is_reached_by(connection)

    def enter(self, connection: Connection, event_ids: Sequence[UUID]) -> None:
        """Tie the transaction that is open on the connection to the end of half messages.

        Raises LateTransaction when one of them has been given up, TransactionRefused when the
        connection commits each statement by itself, or leads to another database than checks do.
        """
        self.admit(connection)
        self._location.check(connection)
        dialect = dialect_of(connection.dialect)
        # In an order that all agree on: two that wait for each other would be a deadlock.
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
        """Whether the open transaction is the one that has entered, and has not lost that again.

        On SQLite, one that follows it is taken for it. True where a statement has failed: nothing
        can be asked, and nothing will be committed.
        """
        if self._marks.state(connection) is TransactionState.FAILED:
            return True
        if sql.has_marks(dialect_of(connection.dialect)):
            # Its caller's connection may fetch by a cursor on the server.
            at_once = {"stream_results": False}
            result = connection.execute(sql.MARKS, execution_options=at_once)
            if not result.returns_rows:
                raise TransactionRefused(_IN_A_PIPELINE)
            marks = result.scalar_one() or ""
            return all(_mark_of(each) in marks for each in event_ids)
        found = connection.scalars(sql.entered(self._tables, [*event_ids]))
        return set(found) >= set(event_ids)

    def ask(self, event_id: UUID) -> LocalOutcome:
        """Return how the local transaction ended; one that has not come is shut out."""
        t, d = self._tables, self._dialect
        try:
            # A row that is there never changes: of a local transaction that committed, and mostly
            # it did, nothing has to be written.
            ended = self.look(event_id)
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

    def look(self, event_id: UUID) -> LocalOutcome:
        """Return how the local transaction ended, as far as can be seen; it changes nothing."""
        with self._autocommit.begin() as connection:
            return _end_in(connection.scalar(sql.found(self._tables, event_id)))


def _mark_of(event_id: UUID) -> str:
    return f" {event_id};"


def _end_in(row: Any) -> LocalOutcome:
    """Read whether the local transaction was there; UNKNOWN where neither it nor a check was."""
    if row is None:
        return LocalOutcome.UNKNOWN
    return LocalOutcome.COMMIT if row else LocalOutcome.ROLLBACK
