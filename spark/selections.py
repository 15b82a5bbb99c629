"""Which rows of each table a run looks at that does not look at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from shieldtx.reconcile.request import Selection

from .reads import EVERYTHING, Read

# In the words of the indexes, one for each of these: what is open, what waits for a person (and
# stays in the report until somebody has seen to it), what has settled since.
_OPEN_IN_OUTBOX = (
    "(o.settled_at IS NULL AND NOT o.waiting)",
    "(o.settled_at IS NULL AND o.waiting)",
)
_OPEN_IN_INBOX = ("i.settled_at IS NULL",)
_WITH_A_PERSON = (
    "({row}.settled_at IS NOT NULL AND {row}.last_error IS NOT NULL"
    " AND {row}.status IN ('FAILED', 'UNRESOLVED', 'DEAD'))"
)
_MOVED = "{row}.settled_at >= {since}"


def read_of_outbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's outbox that a selection covers."""
    return _read(selection, service, row="o", written="created_at", open_=_OPEN_IN_OUTBOX)


def read_of_inbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's inbox that a selection covers.

    An event's own time is when it was written upstream.
    """
    return _read(selection, service, row="i", written="event_time", open_=_OPEN_IN_INBOX)


def _read(
    selection: Selection, service: str, *, row: str, written: str, open_: Sequence[str]
) -> Read:
    conditions = []
    moved = selection.moved_since.get(service)
    if moved is not None:
        any_of = (*open_, _WITH_A_PERSON, _MOVED)
        whatever = " OR ".join(any_of).format(row=row, since=_literal(moved))
        conditions.append(f"({whatever})")
    if selection.written_since is not None:
        conditions.append(f"{row}.{written} >= {_literal(selection.written_since)}")
    if selection.written_until is not None:
        conditions.append(f"{row}.{written} < {_literal(selection.written_until)}")
    return Read(condition=" AND ".join(conditions)) if conditions else EVERYTHING


def _literal(when: datetime) -> str:
    return f"'{when.isoformat()}'::timestamptz"
