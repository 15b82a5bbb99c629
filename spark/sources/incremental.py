"""Which rows of each table a run looks at that does not look at all of them."""

from __future__ import annotations

from collections.abc import Sequence

from shieldtx.reconcile.request import Selection

from .row_filters import EVERYTHING, Read, literal_time

# In the words of the indexes, one for each of these: what is open, what waits for an operator (and
# stays in the report until somebody has seen to it), what has settled since.
OPEN_IN_OUTBOX = (
    "(o.settled_at IS NULL AND NOT o.waiting AND NOT o.holds_key)",
    "(o.settled_at IS NULL AND o.holds_key)",
    "(o.settled_at IS NULL AND o.waiting)",
)
"""What is open, `o`; each in the words of an index."""
OPEN_IN_INBOX = ("i.settled_at IS NULL",)
"""Likewise, `i`."""
OF_OPERATORS_IN_OUTBOX = (
    "(o.settled_at IS NOT NULL AND o.last_error IS NOT NULL"
    " AND o.status IN ('FAILED', 'UNRESOLVED'))"
)
"""What waits for an operator, `o`; in the words of its index."""
OF_OPERATORS_IN_INBOX = (
    "(i.settled_at IS NOT NULL AND i.last_error IS NOT NULL"
    " AND i.tx_kind = 'ROLLBACK' AND i.status = 'DEAD')"
)
"""Likewise, `i`."""
_MOVED = "{row}.settled_at >= {since}"


def read_of_outbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's outbox that a selection covers."""
    any_of = (*OPEN_IN_OUTBOX, OF_OPERATORS_IN_OUTBOX)
    return _read(selection, service, row="o", written="created_at", any_of=any_of)


def read_of_inbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's inbox that a selection covers.

    An event's own time is when it was written upstream.
    """
    any_of = (*OPEN_IN_INBOX, OF_OPERATORS_IN_INBOX)
    return _read(selection, service, row="i", written="event_time", any_of=any_of)


def _read(
    selection: Selection, service: str, *, row: str, written: str, any_of: Sequence[str]
) -> Read:
    conditions = []
    moved = selection.moved_since.get(service)
    if moved is not None:
        moved_since = _MOVED.format(row=row, since=literal_time(moved))
        whatever = " OR ".join((*any_of, moved_since))
        conditions.append(f"({whatever})")
    if selection.written_since is not None:
        conditions.append(f"{row}.{written} >= {literal_time(selection.written_since)}")
    if selection.written_until is not None:
        conditions.append(f"{row}.{written} < {literal_time(selection.written_until)}")
    return Read(condition=" AND ".join(conditions)) if conditions else EVERYTHING
