"""Detects transactions that have ended although SQLAlchemy treats them as open."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from sqlalchemy import Connection


class TransactionState(Enum):
    """What a driver knows of the transaction on its connection, without a query to the server."""

    NONE = "none"
    """The driver has not begun a transaction, or has ended it."""
    OPEN = "open"
    FAILED = "failed"
    """A statement has failed: the server accepts only a rollback."""
    ENDED = "ended"
    """The driver has ended a transaction in which SQLAlchemy continues: each statement is committed
    by itself."""
    UNKNOWN = "unknown"


class TransactionMarks(Protocol):
    """Reads transaction states, and sets marks that a rollback removes.

    A mark is set for an `owner`, a number that is unique in the process, and has a number itself. A
    rollback to a savepoint restores the mark that was set before.
    """

    def state(self, connection: Connection) -> TransactionState:
        """Return what the driver knows; UNKNOWN where it, or its database, has no answer."""
        ...

    def is_in_block(self, connection: Connection) -> bool:
        """Whether the driver is in a block of its own, whose end may roll a part back."""
        ...

    def mark(self, connection: Connection, *, owner: int, number: int) -> int | None:
        """Set the owner's mark, and return the previous one; 0 for none.

        None where the database has no marks.
        """
        ...

    def marked(self, connection: Connection, *, owner: int) -> int:
        """Return the owner's mark; 0 for none."""
        ...
