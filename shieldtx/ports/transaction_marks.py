"""How to see that a transaction has gone which SQLAlchemy takes for open."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from sqlalchemy import Connection


class TransactionState(Enum):
    """What a driver says of the transaction on its connection, without asking the server."""

    NONE = "none"
    """It has not begun one, or has ended it."""
    OPEN = "open"
    FAILED = "failed"
    """A statement has failed: the server runs nothing but a rollback."""
    ENDED = "ended"
    """It has ended one that SQLAlchemy goes on in: each statement is committed by itself."""
    UNKNOWN = "unknown"


class TransactionMarks(Protocol):
    """Looks at transactions, and leaves marks in them which a rollback takes away.

    A mark is set for an `owner`, a number that is unique in the process, and has a number itself. A
    rollback to a savepoint leaves the mark that there was before.
    """

    def state(self, connection: Connection) -> TransactionState:
        """Return what the driver knows; UNKNOWN where it, or its database, cannot be asked."""
        ...

    def is_in_block(self, connection: Connection) -> bool:
        """Whether the driver is in a block of its own, whose end may roll a part back."""
        ...

    def mark(self, connection: Connection, *, owner: int, number: int) -> int | None:
        """Set the owner's mark, and return that which was there before; 0 for none.

        None where the database has no marks.
        """
        ...

    def marked(self, connection: Connection, *, owner: int) -> int:
        """Return the owner's mark; 0 for none."""
        ...
