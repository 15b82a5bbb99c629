"""The contract of every dialect: the features of a database that the store uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    TextClause,
    Update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.types import TypeEngine

LOCKED_AT: Final = "locked_at"
TRANSACTION: Final = "in_transaction"
"""The parameters of a statement that settles rows which `lock_rows` has locked."""

OF_MARK: Final = "shieldtx.of_mark"
"""An execution option of statements that set marks, which a user's function does not notice."""

UpsertInsert: TypeAlias = postgresql.Insert | sqlite.Insert
"""An INSERT that supports ON CONFLICT."""


class Dialect(Protocol):
    """One database, as the statements and the stores use it."""

    # The features of the database.

    name: str
    """SQLAlchemy's name of the database."""
    supports_schemas: bool
    """Tables can have their own schema."""
    skips_locked: bool
    """A claim can skip rows that another transaction has locked."""
    has_server: bool
    """A connection is a socket to a server, which a forked process must not share."""
    has_addresses: bool
    """A row can be found by its physical address."""
    has_sequences: bool
    """The database numbers new rows by itself."""
    migrates_online: bool
    """Large tables can be changed while other transactions write to them."""

    engine_isolation: str
    """The level at which a transaction sees rows that others committed during a wait for a lock."""
    autocommit_isolation: str
    """The level of a statement that is its own transaction."""
    snapshot_isolation: str
    """The level at which several statements see the tables at the same moment."""

    # Time, by the database's clock.

    def now(self) -> ColumnElement[Any]:
        """Return the time at the start of the statement."""

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the time `delay` from now; a column element counts seconds."""

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        """Return how many seconds from now `when` is."""

    # Lists of any length, as values or parameters; the text of the statement stays the same.

    def is_in(
        self, column: ColumnElement[Any], values: Sequence[Any], type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        """Test membership in a list of values."""

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        """Test membership in the rows of a query."""

    def is_in_parameter(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test membership in the list that is the statement's parameter `name`."""

    def has_address_in(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test whether an address is in the list that is the parameter `name`.

        False for every row of a database without addresses.
        """

    def text_rows(self, name: str) -> FromClause:
        """Return the list that is the statement's parameter `name`, as rows `value`."""

    def text_of(self, name: str, key: ColumnElement[str]) -> ColumnElement[str]:
        """Return the text of a key in the mapping that is the statement's parameter `name`."""

    def inside_calendar(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a time, or the nearest time that Python can represent."""

    # Rows, and the snapshot of a claim.

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        """Return how many bytes a text has."""

    def position_of(self, text_: ColumnElement[str], part: str) -> ColumnElement[int]:
        """Return the first position of `part` in a text, counted from 1; 0 if there is none."""

    def address(self, table: FromClause) -> ColumnElement[Any]:
        """Return the physical address of a row, which an UPDATE changes; or its id without one."""

    def digest(self, shards: FromClause) -> ColumnElement[int]:
        """Return a number for a set of shards and their epochs; 0 if it is not needed."""

    def claim_snapshot(
        self, shards: FromClause, has_blocked_keys: ColumnElement[bool], chosen: FromClause
    ) -> ColumnElement[str | None]:
        """Return the fields of a `ClaimSnapshot` as the text of a JSON object.

        NULL if the database has no snapshots.
        """

    def first_of_each(
        self, left: FromClause, rows: Select[Any], column: str, limit: int | ColumnElement[int]
    ) -> tuple[FromClause, FromClause]:
        """Join each row of `left` with the first `limit` of `rows` that have the same `column`.

        A database without LATERAL joins all such rows. Returns the join and its right side.
        """

    def look_up(
        self, left: FromClause, first: Select[Any]
    ) -> tuple[FromClause, ColumnElement[Any]]:
        """Look up one value for each row of `left`; `first` selects it, or no row for NULL.

        Returns the FROM clause and the value.
        """

    def estimated_counts(self, column: Column[Any]) -> TextClause | None:
        """Return a SELECT of a column's values, with their numbers of rows at the last ANALYZE.

        None if the database has no such statistics.
        """

    def shard_count(self, outbox: Table, shard: Table) -> Select[Any] | TextClause:
        """Return a SELECT of the number of shards; NULL or 0 if unknown."""

    # INSERT and UPDATE.

    def insert_new(self, table: Table) -> UpsertInsert:
        """Return an INSERT that skips rows which a unique key has already."""

    def upsert(self, table: Table) -> UpsertInsert:
        """Return an INSERT to which ON CONFLICT ... DO UPDATE can be added."""

    def insert_new_rows(
        self,
        table: Table,
        columns: Sequence[Column[Any]],
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> UpsertInsert:
        """Return an `insert_new` of the rows that `rows_parameters` is given.

        The rows contain `columns` and `more`; `computed` returns the other columns from them.
        """

    def rows_parameters(
        self, columns: Mapping[str, Sequence[Any]], **same: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the parameters of an `insert_new_rows`; `same` applies to every row."""

    def unnumbered_rows_parameters(
        self, columns: Mapping[str, Sequence[Any]]
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the parameters of an `insert_new_rows` into a table without a column `seq`."""

    def next_in_sequence(self) -> dict[str, Any]:
        """Return the parameters of an INSERT for `seq`; none if the database numbers rows."""

    def next_number(self) -> ColumnElement[int]:
        """Return the value of `seq` in an UPDATE that numbers one row like an INSERT."""

    def next_number_parameters(self) -> dict[str, Any]:
        """Return the parameters of an UPDATE of one row with `next_number`."""

    # A transaction in which a user's function runs.

    def lock_rows(
        self, table: Table, condition: ColumnElement[bool]
    ) -> Select[Any] | ReturningUpdate[Any]:
        """Return a statement that locks rows like an UPDATE.

        Its result has rows of a count to be summed, the time, and the transaction's id or "".
        """

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        """Test whether the transaction has the id that is the parameter `name`."""

    def mark_transaction(self, connection: Connection) -> None:
        """Mark the transaction, if it has no id."""

    def is_marked_transaction(self, connection: Connection) -> bool:
        """Return whether the transaction is still the marked transaction.

        True if `is_transaction` makes the test.
        """

    def mark_effect(self, connection: Connection, number: int) -> None:
        """Store a number in the transaction, which a rollback to a savepoint removes."""

    def has_effect(self, connection: Connection, number: int) -> bool:
        """Return whether the number of `mark_effect` is still there."""

    def has_ended(self, connection: Connection) -> bool:
        """Whether the driver has no open transaction, whatever state SQLAlchemy assumes."""

    def is_aborted(self, connection: Connection) -> bool:
        """Whether an error has aborted the transaction, so that its COMMIT would commit nothing."""

    def has_made_temporary(self, connection: Connection) -> bool:
        """Whether the open transaction has made temporary tables, which end with it or later.

        False if temporary tables do not depend on the transaction.
        """

    def returning_made_temporary(self, settled: Update) -> Update:
        """Make an UPDATE return, in each of its rows, the result of `has_made_temporary`.

        The UPDATE returns no rows if the result is always False.
        """

    def keeps_temporary(self, connection: Connection) -> bool:
        """Whether temporary tables have outlived the transaction that has just ended."""

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction has changed or locked rows."""

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver would commit each statement by itself."""

    # Locks other than row locks.

    def try_migration_lock(self, connection: Connection, schema: str | None) -> bool:
        """Lock out other migrations of the same tables until this transaction ends.

        Returns False if another migration is in progress.
        """

    def lock_compensation(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Lock out the group's other compensations of an event until this transaction ends."""

    def lock_timeout(
        self, connection: Connection, patience: timedelta
    ) -> AbstractContextManager[None]:
        """Wait for locks at most `patience`, at least inside the block."""

    # Connections and errors.

    def engine_arguments(self, url: URL, *, pooled: bool) -> dict[str, Any]:
        """Return the arguments by which an engine of shieldtx connects.

        `pooled`: through a pooler that gives each transaction another connection to the server. A
        session can then keep no state: no prepared statements, no `session_arguments`.
        """

    def session_arguments(self, url: URL, idle: timedelta) -> dict[str, Any]:
        """Return the arguments of a connection for its session, see `libpq.session_options`."""

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        """Make the server end this transaction when its client has been silent for `idle`."""

    def table_identity(self, connection: Connection, table: Table) -> tuple[object, ...]:
        """Return values that identify the table among all databases; None for unknown values."""

    def needs_another_connection(self, error: BaseException) -> bool:
        """Whether an error means that another connection may succeed."""

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        """Whether a statement has reached the limit of its wait for a lock."""

    def is_deadlock(self, error: DBAPIError) -> bool:
        """Whether the server has aborted a transaction to break a deadlock."""

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the server has rolled back a transaction that can be run again.

        The causes are a deadlock and a conflict with a concurrent transaction (serialization).
        """
