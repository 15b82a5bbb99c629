"""Events of a session, with the transactions in which they were added and written."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import SessionTransaction

from shieldtx.ports.outbox import Posting


@dataclass(slots=True)
class Entry:
    """A posting of the open transaction."""

    posting: Posting
    added_in: tuple[SessionTransaction, ...]
    """The innermost transaction and its parents: a rollback of any of them removes the event."""
    written_in: tuple[SessionTransaction, ...] = ()
    """The same for its INSERT: a rollback of any of them removes the row, and the event waits
    again. Empty: not written."""
