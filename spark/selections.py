"""Which rows of each table a run looks at that does not look at all of them."""

from __future__ import annotations

from datetime import datetime

from shieldtx.reconcile.request import Selection

from .reads import EVERYTHING, Read

# What waits for a person stays in the report until somebody has seen to it.
_WAITS = "({row}.settled_at IS NULL OR {row}.status IN ('FAILED', 'UNRESOLVED', 'DEAD'))"


def read_of_outbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's outbox that a selection covers."""
    return _read(selection, service, row="o", written="created_at")


def read_of_inbox(selection: Selection, service: str) -> Read:
    """Return the rows of a service's inbox that a selection covers.

    An event's own time is when it was written upstream.
    """
    return _read(selection, service, row="i", written="event_time")


def _read(selection: Selection, service: str, *, row: str, written: str) -> Read:
    conditions = []
    moved = selection.moved_since.get(service)
    if moved is not None:
        waits = _WAITS.format(row=row)
        conditions.append(f"({waits} OR {row}.settled_at >= {_literal(moved)})")
    if selection.written_since is not None:
        conditions.append(f"{row}.{written} >= {_literal(selection.written_since)}")
    if selection.written_until is not None:
        conditions.append(f"{row}.{written} < {_literal(selection.written_until)}")
    return Read(condition=" AND ".join(conditions)) if conditions else EVERYTHING


def _literal(when: datetime) -> str:
    return f"'{when.isoformat()}'::timestamptz"
