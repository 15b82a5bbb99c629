"""The port of the write side: stores events in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.sql.dml import UpdateBase

from shieldtx.domain.events import Envelope
from shieldtx.ports.delayed_events import Change, EventRef
from shieldtx.ports.transaction_marks import TransactionMarks


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """An envelope to be inserted, and when it is due (both None: at once)."""

    envelope: Envelope
    delay: timedelta | None = None
    at: datetime | None = None


class BacklogCounter(Protocol):
    """Counts waiting events, over a connection of the caller."""

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, and stop at `upto`."""
        ...


class OutboxWriter(BacklogCounter, Protocol):
    """Writes rows over the caller's connection, in the transaction that is open there."""

    @property
    def routed_by(self) -> UpdateBase:
        """A change of the outbox, for sessions that choose a database by the statement."""
        ...

    @property
    def marks(self) -> TransactionMarks:
        """The marks that distinguish an ended transaction from an open one."""
        ...

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows with one statement; raises EventRefused for rows written before."""
        ...

    def examine(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection whose transaction cannot store events.

        The connection commits each statement by itself, or redirects the rows to another schema.
        This method runs no statement.
        """
        ...

    def locate(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection to another database than the relay's.

        The server is queried once for each pool of connections.
        """
        ...

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the connection's open transaction may have changed its database.

        Raises TransactionRefused when that is unknown: a statement has failed in the transaction.
        """
        ...

    def require_two_phases(self, connection: Connection) -> None:
        """Raise TransactionRefused where a commit in two phases must fail."""
        ...

    def cancel(self, connection: Connection, event: EventRef, *, who: str) -> Change:
        """Discard a delayed event, recorded under `who`, or return why not."""
        ...
