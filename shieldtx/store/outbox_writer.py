"""The rows of the write side: events of a business transaction, written over its connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from time import monotonic
from typing import Final

from sqlalchemy import Connection, Engine, update
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shieldtx.domain.events import Envelope
from shieldtx.domain.reasons import reason_of
from shieldtx.errors import EventRefused, TransactionRefused
from shieldtx.ports.delayed_events import Change, EventRef
from shieldtx.ports.outbox import Posting
from shieldtx.store.admission import admit, may_have_written, require_two_phases
from shieldtx.store.delayed_events import SqlDelayedEventStore
from shieldtx.store.dialects import dialect_of
from shieldtx.store.shard_count import ShardCount
from shieldtx.store.statements import backlog
from shieldtx.store.statements import outbox as sql
from shieldtx.store.table_location import TableLocation
from shieldtx.store.tables import Tables
from shieldtx.store.transaction_marks import SqlTransactionMarks

log = logging.getLogger(__name__)

_ASKS_AGAIN_S: Final = 60.0
"""A query at each event to a database that does not respond would delay every transaction."""
_LONGEST_QUESTION_S: Final = 1.0
"""A commit waits for the response, and an event loop with it."""
_UNDEFINED_TABLE: Final = "42P01"
"""PostgreSQL's SQLSTATE of a statement whose table does not exist."""
_NOT_FOUND: Final = (
    "this transaction does not find {}, so its event has no table to go into: run `shieldtx db "
    "upgrade` if the tables do not exist. If the transaction has changed its search_path, set "
    "SHIELDTX_DATABASE_SCHEMA, or reset the search_path before the commit"
)
_ELSEWHERE = (
    "in which the relay of this service looks (SHIELDTX_DATABASE_URL): no relay would find the "
    "event. Add it in a session of that database; where the data is in another one, use a half "
    "message (docs/how-to/half-messages.md)"
)


class SqlOutboxWriter:
    """Writes rows over connections of the caller (the port OutboxWriter)."""

    def __init__(
        self,
        tables: Tables,
        *,
        shards: int | None = None,
        relays_engine: Callable[[], Engine] | None = None,
    ) -> None:
        """Write into the shards of the tables; `shards` is the number that the settings expect.

        If `relays_engine` is given, write only into the tables that it reaches.
        """
        self._tables = tables
        self._relays_engine = relays_engine
        self._asks_again_at = 0.0
        self._shards = ShardCount(tables, setting=shards)
        # Sessions with read replicas treat UPDATE and DELETE as writes, but not all know INSERT.
        self.routed_by = update(tables.outbox)
        self.marks = SqlTransactionMarks()

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows at once.

        Raises EventRefused for a business key used before, ConfigurationError if the settings have
        another number of shards than the tables, and TransactionRefused like `locate`, and where
        the transaction does not find the tables.
        """
        self.locate(connection)
        dialect = dialect_of(connection.dialect)
        shards = self._shards.of(connection)
        rows = [sql.parameters_of(p, dialect, shards=shards) for p in postings]
        try:
            connection.execute(sql.insert(self._tables, dialect), rows)
        except IntegrityError as error:
            self._shards.refuse(error, connection)
            raise refusal_of(error, [posting.envelope for posting in postings]) or error from error
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) == _UNDEFINED_TABLE:
                raise TransactionRefused(_NOT_FOUND.format(self._tables.outbox.fullname)) from error
            raise

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, among the latest of all topics."""
        statement = backlog.events(self._tables, dialect_of(connection.dialect))
        found = connection.scalars(statement, backlog.parameters(topic, upto))
        return int(found.one())

    def examine(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection in AUTOCOMMIT, or with other schemas."""
        admit(connection, self._tables.outbox, or_else="the event would outlive its data")

    def locate(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection to other tables than the relay's.

        While the relay's database cannot be queried, nothing is refused: the events are safe.
        """
        if self._location is None or monotonic() < self._asks_again_at:
            return
        try:
            self._location.check(connection)
        except (DBAPIError, PoolTimeout, TimeoutError) as error:
            if connection.invalidated:
                # The caller's own connection is lost, and this error shows that best.
                raise
            self._asks_again_at = monotonic() + _ASKS_AGAIN_S
            log.warning(
                "relay's tables could not be compared",
                extra={"action": "tables_not_compared", "error": reason_of(error)},
            )

    @cached_property
    def _location(self) -> TableLocation | None:
        if self._relays_engine is None:
            return None
        return TableLocation(
            self._relays_engine(),
            self._tables.outbox,
            advice=_ELSEWHERE,
            longest_s=_LONGEST_QUESTION_S,
        )

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the open transaction may have changed its database; True for unknown databases.

        Raises TransactionRefused if the server cannot be queried.
        """
        return may_have_written(connection)

    def require_two_phases(self, connection: Connection) -> None:
        """Raise TransactionRefused for a server that prepares no transactions."""
        require_two_phases(connection)

    def cancel(self, connection: Connection, event: EventRef, *, who: str) -> Change:
        """Discard a delayed event that is not due yet; the audit log records `who`."""
        return SqlDelayedEventStore(self._tables).cancel(connection, event, who=who)


def refusal_of(error: IntegrityError, envelopes: Sequence[Envelope]) -> EventRefused | None:
    """Return the error that names the field which was written before; None for other violations."""
    # PostgreSQL names the index, SQLite the columns.
    message = str(error.orig)
    if "shield_outbox_biz_key_key" in message or "shield_outbox.biz_key" in message:
        keys = sorted({f"{e.type} {e.biz_key}" for e in envelopes if e.biz_key is not None})
        return EventRefused(
            "biz_key",
            f"one of {', '.join(keys)} was written before; a business key is for event types "
            "that happen once per object (leave it out for the others)",
        )
    if "shield_outbox_pkey" in message or "shield_outbox.event_id" in message:
        ids = ", ".join(str(e.id) for e in envelopes)
        return EventRefused("id", f"one of {ids} was written before; make an Event for each")
    return None
