"""The rows of each table that a run selects if it does not select all of them."""

from __future__ import annotations

from collections.abc import Sequence

from shieldtx.reconcile.request import Selection

from .row_filters import EVERYTHING, Read, literal_time

# Written as in the indexes, one for each of these: open rows, rows that wait for an operator (and
# stay in the report until an operator has settled them), rows settled since.
OPEN_IN_OUTBOX = (
    "(o.settled_at IS NULL AND NOT o.waiting AND NOT o.holds_key)",
    "(o.settled_at IS NULL AND o.holds_key)",
    "(o.settled_at IS NULL AND o.waiting)",
)
"""Open rows, `o`; each condition as in an index."""
OPEN_IN_INBOX = ("i.settled_at IS NULL",)
"""Open rows, `i`."""
OF_OPERATORS_IN_OUTBOX = (
    "(o.settled_at IS NOT NULL AND o.last_error IS NOT NULL"
    " AND o.status IN ('FAILED', 'UNRESOLVED'))"
)
"""Rows that wait for an operator, `o`; as in their index."""
OF_OPERATORS_IN_INBOX = (
    "(i.settled_at IS NOT NULL AND i.last_error IS NOT NULL"
    " AND (i.tx_kind = 'ROLLBACK' OR i.awaits_operator) AND i.status = 'DEAD')"
)
"""Rows that wait for an operator, `i`; as in their index."""
_MOVED = "{row}.settled_at >= {since}"


def read_of_outbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's outbox that a selection covers."""
    any_of = (*OPEN_IN_OUTBOX, OF_OPERATORS_IN_OUTBOX)
    return _read(selection, service, row="o", written="created_at", any_of=any_of)


def read_of_inbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's inbox that a selection covers.

    `event_time` is the time at which the event was written upstream.
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
