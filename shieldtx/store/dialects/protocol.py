"""What the store asks of a database: the contract of every dialect."""

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
"""Parameters of a statement that settles rows which were locked by `lock_rows`."""

OF_MARK: Final = "shieldtx.of_mark"
"""An execution option of statements that set marks: nothing that a user's function meets."""

UpsertInsert: TypeAlias = postgresql.Insert | sqlite.Insert
"""An INSERT that knows ON CONFLICT."""


class Dialect(Protocol):
    """One database, as the statements and the stores use it."""

    # What the database can do.

    name: str
    """SQLAlchemy's name of the database."""
    supports_schemas: bool
    """Tables can be in a schema of their own."""
    skips_locked: bool
    """A claim can pass over rows that another transaction has locked."""
    has_server: bool
    """A connection is a socket to a server, which a forked process must not share."""
    has_addresses: bool
    """A row can be found by its physical address."""
    has_sequences: bool
    """The database numbers rows by itself."""
    migrates_online: bool
    """Large tables can be changed while others write to them."""

    engine_isolation: str
    """The level at which a transaction sees what others committed while it waited for a lock."""
    autocommit_isolation: str
    """The level of a statement that is a transaction by itself."""
    snapshot_isolation: str
    """The level at which several statements see the tables at one moment."""

    # Time, by the database's clock.

    def now(self) -> ColumnElement[Any]:
        """Return the time at the start of the statement."""

    def later(self, delay: timedelta | ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the time `delay` from now; a column element counts seconds."""

    def seconds_until(self, when: ColumnElement[Any]) -> ColumnElement[float]:
        """Return how many seconds from now `when` is."""

    # Lists: values or parameters of any length, with which the statement's text stays the same.

    def is_in(
        self, column: ColumnElement[Any], values: Sequence[Any], type_: TypeEngine[Any]
    ) -> ColumnElement[bool]:
        """Test membership in a list of values."""

    def is_in_rows(self, column: ColumnElement[Any], rows: Select[Any]) -> ColumnElement[bool]:
        """Test membership in the rows of a query."""

    def is_in_parameter(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test membership in the list that a statement is run with as its parameter `name`."""

    def has_address_in(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Test whether an address is in the list that is the parameter `name`.

        False for every row of a database without addresses.
        """

    def text_rows(self, name: str) -> FromClause:
        """Return the list that a statement is run with as its parameter `name`, as rows `value`."""

    def inside_calendar(self, time: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a time, or the nearest one of a year that Python knows, too."""

    # Rows and what a claim sees around them.

    def bytes_of(self, text_: ColumnElement[str]) -> ColumnElement[int]:
        """Return how many bytes a text has."""

    def position_of(self, text_: ColumnElement[str], part: str) -> ColumnElement[int]:
        """Return where `part` first is in a text, counted from 1; 0: nowhere."""

    def address(self, table: FromClause) -> ColumnElement[Any]:
        """Return the physical address of a row, which an UPDATE changes; without one, its id."""

    def digest(self, shards: FromClause) -> ColumnElement[int]:
        """Return a number for a set of shards and their epochs; 0 where it is not needed."""

    def claim_snapshot(
        self, shards: FromClause, has_blocked_keys: ColumnElement[bool], chosen: FromClause
    ) -> ColumnElement[str | None]:
        """Return the fields of a `ClaimSnapshot` as the text of a JSON object.

        NULL where the database has no snapshots.
        """

    def first_of_each(
        self, left: FromClause, rows: Select[Any], column: str, limit: int | ColumnElement[int]
    ) -> tuple[FromClause, FromClause]:
        """Join each row of `left` with the first `limit` of `rows` that agree with it on `column`.

        A database without LATERAL joins all of them. Returns the join and the right side of it.
        """

    def look_up(
        self, left: FromClause, first: Select[Any]
    ) -> tuple[FromClause, ColumnElement[Any]]:
        """Look up one value for each row of `left`; `first` selects it, or no row for NULL.

        Returns what to select from, and the value.
        """

    def estimated_counts(self, column: Column[Any]) -> TextClause | None:
        """Return a SELECT of values of a column and how many rows the last ANALYZE saw of each.

        None where the database has no such statistics.
        """

    def shard_count(self, outbox: Table, shard: Table) -> Select[Any] | TextClause:
        """Return a SELECT of the number of shards; NULL or 0: unknown."""

    # INSERT and UPDATE.

    def insert_new(self, table: Table) -> UpsertInsert:
        """Return an INSERT that passes over rows which any unique key knows already."""

    def upsert(self, table: Table) -> UpsertInsert:
        """Return an INSERT to which ON CONFLICT ... DO UPDATE can be added."""

    def insert_new_rows(
        self,
        table: Table,
        columns: Sequence[Column[Any]],
        more: Mapping[str, TypeEngine[Any]],
        computed: Callable[[Any], Mapping[str, Any]],
    ) -> UpsertInsert:
        """Return an `insert_new` of as many rows as `rows_parameters` is given.

        The rows bring `columns` and `more`; of what they bring, the others are `computed`.
        """

    def rows_parameters(
        self, columns: Mapping[str, Sequence[Any]], **same: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the parameters of an `insert_new_rows`; `same` are those of every row."""

    def unnumbered_rows_parameters(
        self, columns: Mapping[str, Sequence[Any]]
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the same for a table without a column `seq`."""

    def next_in_sequence(self) -> dict[str, Any]:
        """Return the parameters of an INSERT for `seq`: none where the database counts."""

    def next_number(self) -> ColumnElement[int]:
        """Return the value of `seq` in an UPDATE of one row that numbers it as an INSERT does."""

    def next_number_parameters(self) -> dict[str, Any]:
        """Return the parameters of an UPDATE of one row with `next_number`."""

    # A transaction in which a user's function runs.

    def lock_rows(
        self, table: Table, condition: ColumnElement[bool]
    ) -> Select[Any] | ReturningUpdate[Any]:
        """Return a statement that locks rows as an UPDATE does.

        Its rows: a count to be summed, the time, and the transaction's id or "".
        """

    def is_transaction(self, name: str) -> ColumnElement[bool]:
        """Test whether the transaction is the one whose id is the parameter `name`."""

    def mark_transaction(self, connection: Connection) -> None:
        """Mark the transaction, where it has no id to know it by."""

    def is_marked_transaction(self, connection: Connection) -> bool:
        """Return whether the transaction is still that of `mark_transaction`.

        True where `is_transaction` gives the answer.
        """

    def mark_effect(self, connection: Connection, number: int) -> None:
        """Leave a number in the transaction, which a rollback to a savepoint takes away."""

    def has_effect(self, connection: Connection, number: int) -> bool:
        """Return whether the number of `mark_effect` is still there."""

    def has_ended(self, connection: Connection) -> bool:
        """Whether the driver has no transaction open, whatever SQLAlchemy takes for open."""

    def is_aborted(self, connection: Connection) -> bool:
        """Whether an error has ended the transaction, so that its COMMIT would commit nothing."""

    def has_made_temporary(self, connection: Connection) -> bool:
        """Whether the open transaction has made temporary tables, which end with it or later.

        False where a temporary table stays whatever becomes of the transaction.
        """

    def tells_temporary(self, settled: Update) -> Update:
        """Have an UPDATE return, in each of its rows, the answer of `has_made_temporary`.

        Without rows where the answer is always no.
        """

    def keeps_temporary(self, connection: Connection) -> bool:
        """Whether temporary tables have outlived the transaction that is just over."""

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction has changed rows, or locked some."""

    def is_autocommit(self, connection: Connection) -> bool:
        """Whether the driver would commit each statement by itself."""

    # Locks beyond those of rows.

    def try_migration_lock(self, connection: Connection, schema: str | None) -> bool:
        """Keep other migrations of the same tables out until this transaction ends.

        Returns False where another one runs.
        """

    def lock_compensation(self, connection: Connection, group: str, event_id: UUID) -> None:
        """Keep the group's other compensations of an event out until this transaction ends."""

    def lock_timeout(
        self, connection: Connection, patience: timedelta
    ) -> AbstractContextManager[None]:
        """Wait for locks no longer than that, at least inside the block."""

    # Connections and errors.

    def engine_arguments(self, url: URL, *, pooled: bool) -> dict[str, Any]:
        """Return how an engine of shieldtx's own connects.

        `pooled`: through a pooler that gives each transaction another connection to the server, so
        that nothing may be kept in a session: no prepared statements, no `session_arguments`.
        """

    def session_arguments(self, url: URL, idle: timedelta) -> dict[str, Any]:
        """Return how one of its connections asks for its session: see `libpq.session_options`."""

    def limit_idleness(self, connection: Connection, idle: timedelta) -> None:
        """Have the server end this transaction when its client has been silent for `idle`."""

    def table_identity(self, connection: Connection, table: Table) -> tuple[object, ...]:
        """Return what tells the table apart from those of other databases; None where unknown."""

    def needs_another_connection(self, error: BaseException) -> bool:
        """Whether an error means that another connection may do better than this one."""

    def is_lock_timeout(self, error: DBAPIError) -> bool:
        """Whether a statement has waited for a lock as long as it may."""

    def is_deadlock(self, error: DBAPIError) -> bool:
        """Whether the server has ended a transaction to break a cycle of waits."""

    def is_conflict(self, error: DBAPIError) -> bool:
        """Whether the server has rolled a transaction back because of others: it may be run again.

        After a deadlock, and where it could not be as if one had run after the other.
        """
