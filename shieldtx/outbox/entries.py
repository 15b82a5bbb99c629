"""Events of a session, and in which of its transactions they were added and written."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import SessionTransaction

from shieldtx.ports.outbox import Posting


@dataclass(slots=True)
class Entry:
    """A posting of the transaction that is open."""

    posting: Posting
    added_in: tuple[SessionTransaction, ...]
    """The innermost transaction and those around it: when one is rolled back, the event is gone."""
    written_in: tuple[SessionTransaction, ...] = ()
    """Likewise of its INSERT: when one is rolled back, the row is gone, and the event waits again.
    Empty: not written."""
