"""What the write side needs from outside: a place for events in the caller's transaction."""

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
    """An envelope on its way into the table, and when it is due (both None: at once)."""

    envelope: Envelope
    delay: timedelta | None = None
    at: datetime | None = None


class BacklogCounter(Protocol):
    """Counts what waits, over a connection of the caller."""

    def backlog(self, connection: Connection, topic: str, *, upto: int) -> int:
        """Count the unsettled events of a topic that are due, and stop at `upto`."""
        ...


class OutboxWriter(BacklogCounter, Protocol):
    """Writes rows over the caller's connection, in the transaction that is open there."""

    @property
    def routed_by(self) -> UpdateBase:
        """A change of the outbox, for sessions that choose among databases by the statement."""
        ...

    @property
    def marks(self) -> TransactionMarks:
        """By which a transaction that has gone is told from one that is open."""
        ...

    def insert(self, connection: Connection, postings: Sequence[Posting]) -> None:
        """Insert all rows with one statement; raises EventRefused for those written before."""
        ...

    def examine(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection whose transaction cannot take events.

        It commits each statement by itself, or redirects the rows to another schema. No statement
        is run.
        """
        ...

    def locate(self, connection: Connection) -> None:
        """Raise TransactionRefused for a connection to another database than the relay's.

        The server is asked, once for each pool of connections.
        """
        ...

    def may_have_written(self, connection: Connection) -> bool:
        """Whether the transaction that is open on a connection may have changed its database.

        Raises TransactionRefused when that cannot be known: a statement has failed in it.
        """
        ...

    def cancel(self, connection: Connection, event: EventRef, *, who: str) -> Change:
        """Discard a delayed event in somebody's name, or say why not."""
        ...
